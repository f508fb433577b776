"""The n-th allocation of the native module is refused: by a library that is preloaded into a process of its own."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moeinf import _native

SOURCE = Path(__file__).with_name("allocations.cc")


def compiler() -> str | None:
    """The C++ compiler at hand."""
    return next((path for name in (os.environ.get("CXX", ""), "c++", "g++") if (path := shutil.which(name))), None)


def built(source: Path, folder: Path) -> Path:
    """A library of one C++ file, in the folder."""
    library, found = folder / f"{source.stem}.so", compiler()
    assert found is not None, "there is no C++ compiler"
    subprocess.run([found, "-std=c++17", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def run_preloaded(module: str, arguments: list[str], folder: Path) -> int:
    """Runs a module of the tests anew, with the library, which is compiled into the folder; returns its exit status."""
    library = built(SOURCE, folder)
    command = [sys.executable, "-X", "faulthandler", "-m", module, *arguments]
    environment = os.environ | {"LD_PRELOAD": str(library)}
    return subprocess.run(command, env=environment, cwd=SOURCE.parents[3], check=False).returncode


def preloaded() -> bool:
    """Whether this process has the library."""
    return "allocations.so" in os.environ.get("LD_PRELOAD", "")


@contextmanager
def allocation_refused(number: int) -> Iterator[None]:
    """The allocation of that number, from 1 on, that this thread makes in the native module; 0: none is."""
    library = ctypes.CDLL(None)
    library.arm_allocations(*_code_of_module(), ctypes.c_long(number))
    try:
        yield
    finally:
        library.arm_allocations(ctypes.c_size_t(0), ctypes.c_size_t(0), ctypes.c_long(0))


def num_allocations() -> int:
    """How many were made since `allocation_refused` was entered."""
    asked = ctypes.CDLL(None).asked_allocations
    asked.restype = ctypes.c_long
    return int(asked())


def _code_of_module() -> tuple[ctypes.c_size_t, ctypes.c_size_t]:
    """Where the module's code begins and ends in memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, *_, path = line.split()
        if path == str(Path(_native.__file__).resolve()) and "x" in access:
            start, stop = (int(each, 16) for each in addresses.split("-"))
            return ctypes.c_size_t(start), ctypes.c_size_t(stop)
    raise AssertionError("the native module is not in memory")
