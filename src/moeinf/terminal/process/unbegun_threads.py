"""The end of a command whose system refuses a thread its first memory, in place of a wait for ever."""

from __future__ import annotations

import errno
import sys
from functools import partial

from moeinf import _native
from moeinf.errors import REMEDIES

_LINE = f"Error: not enough memory to begin a thread; {REMEDIES[errno.ENOMEM]}\n"


def end_with_unbegun_threads() -> None:
    """From now on the process ends with a line and exit code 1 where a thread dies of a MemoryError as it begins.

    `threading.Thread.start` waits until the thread has begun, and so for ever (python/cpython#140746). What is told of
    the error is native code, since the thread has no memory for a frame of Python. As after any kill, the store is
    whole, and the same command goes on.
    """
    sys.unraisablehook = partial(_native.end_if_unbegun, _LINE, sys.unraisablehook)
