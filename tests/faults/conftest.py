"""Processes whose calls can be made to fail."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults import reader_calls
from tests.support.faults.forks import Forks


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process whose calls can be made to fail."""
    built = tmp_path_factory.mktemp("faults") / "faulty_calls.so"
    compiler = os.environ.get("CXX") or shutil.which("c++") or "g++"
    source = Path(reader_calls.__file__).with_name("faulty_calls.cc")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(built), str(source), "-ldl"], check=True)
    return {"LD_PRELOAD": str(built)}


@pytest.fixture(scope="module")
def forks(preloaded: dict[str, str]) -> Iterator[Forks]:
    made = Forks(preloaded)
    yield made
    made.close()
