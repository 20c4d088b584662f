"""Stop a handler that runs in a thread, without ever hitting the runtime's own code."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time

_set_async_exc = ctypes.pythonapi.PyThreadState_SetAsyncExc
_set_async_exc.argtypes = [ctypes.c_ulong, ctypes.py_object]
_clear_async_exc = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)

# CPython 3.11 runs no traced function while an exception waits for a thread that cannot take it.
FREEZES_WHEN_TRACED = sys.version_info < (3, 12)
TIME_TO_TAKE_IT = 0.05


class Interrupted(BaseException):
    """Raised inside a handler that must stop; no `except Exception` may swallow it."""


class Interruptible:
    """
    The stretch of a thread's work that may be interrupted: the handler, and nothing else.

    The lock decides between an interrupt and the handler's end. Past `leave` no interrupt is sent,
    and one that was sent but not yet raised is taken back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._sent = False

    @property
    def was_interrupted(self) -> bool:
        """Also when the handler kept it to itself."""
        return self._sent

    def enter(self) -> None:
        with self._lock:
            self._thread = threading.get_ident()

    def leave(self) -> None:
        """End the stretch; may itself be interrupted, and is then simply called again."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is None or not self._sent:
                return
        # One that may be on its way is replaced by one that certainly is, and caught. To send
        # nothing instead leaves CPython 3.11 looking for what was there, in all threads.
        try:
            while True:
                _set_async_exc(thread, ctypes.py_object(Interrupted))
        except Interrupted:
            pass

    def interrupt(self) -> bool:
        """Raise Interrupted in the handler; False when it is not running (any more)."""
        with self._lock:
            if self._thread is None:
                return False
            self._sent = True
            _set_async_exc(self._thread, ctypes.py_object(Interrupted))
            if FREEZES_WHEN_TRACED and sys.gettrace() is not None:
                # No call of a Python function in here: that is what would not return.
                time.sleep(TIME_TO_TAKE_IT)
                _clear_async_exc(self._thread, None)
                try:
                    while True:
                        _set_async_exc(threading.get_ident(), ctypes.py_object(Interrupted))
                except Interrupted:
                    pass
            return True


class InterruptibleBySignal(Interruptible):
    """
    The same in a main thread, where a signal reaches into calls that wait, too.

    Needs no lock: the signal's handler runs in this thread, between two steps of it, or not at all.
    """

    def enter(self) -> None:
        self._thread = threading.get_ident()

    def leave(self) -> None:
        self._thread = None

    def interrupt(self) -> bool:
        thread = self._thread
        if thread is None:
            return False
        self._sent = True
        signal.pthread_kill(thread, signal.SIGTERM)
        return True

    def on_signal(self) -> None:
        """Called by the handler of SIGTERM, which others may send for reasons of their own."""
        if self._sent and self._thread is not None:
            raise Interrupted
