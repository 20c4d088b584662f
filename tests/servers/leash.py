"""
Watch over a server for its owner.

Runs as a process of its own with a directory as its argument and a pipe from the owner as its
standard input. The owner writes the server's process id, or 0 while there is none. The pipe ends
when the owner does, however that dies; what is left of the server is then ended and deleted.
"""

import contextlib
import os
import shutil
import signal
import sys
import time


def main(directory: str) -> None:
    pid = 0
    for line in sys.stdin:
        pid = int(line)
    if pid:
        end(pid)
    shutil.rmtree(directory, ignore_errors=True)


def end(pid: int) -> None:
    """Ask for the quickest orderly end, which frees shared memory too; then insist."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGQUIT)
        for _ in range(100):
            time.sleep(0.1)
            os.kill(pid, 0)
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
