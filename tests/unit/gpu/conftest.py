"""Runs Triton's kernels in its interpreter, on the CPU: triton looks at the variable when a kernel is declared.

A machine's GPU is for tests/gpu, in a process of its own.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def triton_cache(request: pytest.FixtureRequest) -> Path:
    """Where compiled kernels are kept from one run to the next. Triton names each by all that it was made from."""
    cache = request.config.cache
    assert cache is not None
    return cache.mkdir("triton")
