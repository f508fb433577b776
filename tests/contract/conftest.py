"""What the tests of more than one contract are given."""

from __future__ import annotations

import pytest

from moeinf._native import Arena, NativeReader


@pytest.fixture(params=["pure", "threads", "io_uring"])
def kind(request: pytest.FixtureRequest) -> str:
    """Each reader that this machine lets run."""
    if request.param == "io_uring":
        try:
            NativeReader([], [], Arena(4096), backend="io_uring").close()
        except OSError as refused:
            pytest.skip(str(refused))
    return str(request.param)
