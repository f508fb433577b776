"""Running the command inside this process, over a store that holds the embedded model."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from moeinf import cli
from moeinf.store.library import StoredModel
from tests.support.cli.commands import Done
from tests.support.cli.hanging_disk import Hang, build_library

NOBODY = "127.0.0.1:0"  # where no server listens, whatever runs on this machine


@pytest.fixture
def home(demo: StoredModel) -> Path:
    """The store that holds the embedded model."""
    return demo.path.parents[1]


@pytest.fixture
def environment(home: Path) -> dict[str, str]:
    told = {"MOEINF_HOME": str(home), "MOEINF_HOST": NOBODY, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    return os.environ | told


@pytest.fixture
def command(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """command(*words, stdin="") -> Done, in this process: torch is imported but once."""

    def call(*words: str, stdin: str = "") -> Done:
        monkeypatch.setenv("MOEINF_HOME", os.environ.get("MOEINF_HOME", str(home)))
        monkeypatch.setenv("MOEINF_HOST", os.environ.get("MOEINF_HOST", NOBODY))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = cli.run_command(list(words))
        captured = capfd.readouterr()
        return Done(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def hanging_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("hang"))


@pytest.fixture
def hang(hanging_library: Path, environment: dict[str, str], tmp_path: Path) -> Hang:
    mark = tmp_path / "mark"
    more = {"LD_PRELOAD": str(hanging_library), "HANG_MARK": str(mark), "HANG_FILES": "experts-"}
    return Hang(environment | more, mark)
