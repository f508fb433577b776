"""Processes whose calls can be made to fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults import reader_calls
from tests.support.faults.forks import Forks
from tests.support.faults.native import built


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process whose calls can be made to fail."""
    source = Path(reader_calls.__file__).with_name("faulty_calls.cc")
    return {"LD_PRELOAD": str(built(source, tmp_path_factory.mktemp("faults")))}


@pytest.fixture(scope="module")
def forks(preloaded: dict[str, str]) -> Iterator[Forks]:
    made = Forks(preloaded)
    yield made
    made.close()
