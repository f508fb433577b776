"""Each call of the readers fails in turn, with each of many errnos: the bytes of the file, or an error that names it.

Run as a module, with faulty_calls.cc preloaded: it prints how many cases there were, and what was wrong.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from moeinf._native import Arena, NativeReader, ReadFailure
from moeinf.runtime.io.python_reader import PureReader

_BLOCK: Final = 4096
_FILE_BYTES: Final = 64 * _BLOCK
_REQUEST_BYTES: Final = 8 * _BLOCK
# As in faulty_calls.cc. Those after which every reader has to go on.
OPEN, DIRECT_OPEN, READ, DIRECT_READ, STAT = range(1, 6)
SET_UP, REGISTER, ENTER, COMPLETION, WAKE, MAP, ADVISE, THREAD = range(6, 14)
_SPARED: Final = (DIRECT_OPEN, DIRECT_READ, SET_UP, REGISTER, ENTER, COMPLETION, WAKE, ADVISE)
_KINDS: Final = (OPEN, DIRECT_OPEN, READ, DIRECT_READ, STAT, SET_UP, REGISTER, ENTER, COMPLETION, WAKE, ADVISE)
_ERRNOS: Final = (
    *("EINVAL", "EIO", "EOPNOTSUPP", "ENOSYS", "EPERM", "EACCES", "ENOMEM", "EAGAIN", "EINTR", "EFAULT", "EBADF"),
    *("EROFS", "ENXIO", "ENODEV", "EBUSY", "EMFILE", "ESTALE", "ETIMEDOUT", "ENOLCK"),
)
FOR_EVER: Final = 1 << 40


def _errnos(kind: int) -> list[int]:
    if kind == COMPLETION:  # those that the kernel gives for entries that were spoiled
        return [errno.EBADF, errno.EFAULT, errno.EINVAL]
    found = [getattr(errno, name) for name in _ERRNOS]
    return [*found, 0] if kind in (READ, DIRECT_READ) else found


def _wrong(kind: str, path: Path, wanted: Any, *, spared: bool) -> str:
    """What is wrong with how a reader of this kind has read the file, or "". spared: it can do without the call."""
    arena = Arena(_FILE_BYTES)
    options: dict[str, Any] = {"segment_bytes": 2 * _BLOCK}
    try:
        if kind == "pure":
            reader: Any = PureReader([str(path)], [_FILE_BYTES], arena, **options)
        else:
            options |= {"backend": kind, "queue_depth": 4}
            reader = NativeReader([str(path)], [_FILE_BYTES], arena, **options)
    except OSError as error:
        return "" if error.errno is not None and not spared else f"an error at opening: {error!r}"
    try:
        keys = np.arange(_FILE_BYTES // _REQUEST_BYTES)
        places = keys * _REQUEST_BYTES
        reader.submit(keys, 0 * keys, places, places, _REQUEST_BYTES, np.full(len(keys), np.inf))
        left = keys
        while len(left):
            left = np.setdiff1d(left, reader.wait_any(left))
    except ReadFailure as failure:
        return "" if str(path) in str(failure) and not spared else f"an error: {failure}"
    finally:
        reader.close()
    return "" if np.array_equal(arena.array(), wanted) else "other bytes"


def main() -> None:
    fail_calls = ctypes.CDLL(None).fail_calls
    fail_calls.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_int]
    cases, wrong = 0, list[str]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "experts-00000.bin")
        wanted = np.random.default_rng(3).integers(0, 256, _FILE_BYTES, dtype=np.uint8)
        wanted.tofile(path)
        for reader in ("auto", "threads", "pure"):
            for kind in _KINDS:
                for number in _errnos(kind):
                    for first, count in ((0, 1), (1, 1), (7, 1), (0, FOR_EVER), (3, FOR_EVER)):
                        if count == FOR_EVER and number == errno.EINTR:
                            continue  # no kernel does so, and Python itself would ask for ever
                        if kind == ENTER and count == FOR_EVER and first and number != errno.EPERM:
                            continue  # takes the second after which a ring is given up
                        fail_calls(kind, first, count, number)
                        said = _wrong(reader, path, wanted, spared=kind in _SPARED)
                        fail_calls(0, 0, 0, 0)
                        cases += 1
                        if said:
                            wrong.append(f"{reader}, kind {kind}, {os.strerror(number)}, from {first}, {count}: {said}")
    print(cases, "cases")
    print("\n".join(wrong[:20]))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
