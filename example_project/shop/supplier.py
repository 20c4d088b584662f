"""Somebody else's system, which answers when it likes: here, at the third call."""


class Busy(Exception):
    def __init__(self, seconds):
        self.seconds = seconds
        super().__init__(f"busy, call again in {seconds} s")


def order(sku, quantity, *, reference, call):
    """Order goods; the reference makes a repeated order the same order."""
    if call < 3:
        raise Busy(seconds=call)
    return f"{quantity} x {sku} will come ({reference})"
