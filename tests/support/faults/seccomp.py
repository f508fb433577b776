"""System calls that a process may not make any more: what a container's filter does, by number and errno."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Collection, Mapping

_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


@functools.cache
def numbers() -> Mapping[str, int]:
    """The number of each system call on this machine, by name, as its compiler knows them."""
    compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
    command = [compiler, "-E", "-dM", "-include", "sys/syscall.h", "-x", "c", os.devnull]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)$", found, re.MULTILINE)}


def deny(calls: Collection[int], errno: int) -> None:
    """Refuses these system calls, by number, with `errno`, to this process and all that it starts, for good."""
    count = len(calls)
    lines = [struct.pack("<HBBI", _LOAD, 0, 0, 0)]  # the number of the call
    lines += [struct.pack("<HBBI", _JUMP_IF_EQUAL, count - place, 0, call) for place, call in enumerate(calls)]
    lines += [struct.pack("<HBBI", _RETURN, 0, 0, _ALLOW), struct.pack("<HBBI", _RETURN, 0, 0, _ERRNO | errno)]
    code = ctypes.create_string_buffer(b"".join(lines))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(lines), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SET_SECCOMP, _FILTER, program, 0, 0)):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "no filter can be set")
