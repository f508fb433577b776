"""What Python raises where the machine gives too little is told as that, and nothing else is."""

from __future__ import annotations

import pytest

from moeinf.errors import OutOfMemoryError, of_the_machine


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        SystemError("error return without exception set"),
        ImportError("libx.so: failed to map segment from shared object"),
    ],
)
def test_too_little_memory_is_told_with_its_remedy(error: Exception) -> None:
    known = of_the_machine(error)
    assert isinstance(known, OutOfMemoryError) and "ulimit -v" in str(known)


@pytest.mark.parametrize(
    "error", [SystemError("<method 'x' of 'y' objects> returned NULL without setting an exception"), ValueError("x")]
)
def test_a_fault_of_a_program_is_none_of_the_machine(error: Exception) -> None:
    assert of_the_machine(error) is None
