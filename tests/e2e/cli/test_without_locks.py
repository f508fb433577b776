"""A store on a file system that has no flock."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from moeinf.store.processes import locks
from tests.support.cli.commands import Done


def test_models_are_stored_named_used_and_removed(
    command: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(locks, "_noted", set())
    monkeypatch.setenv("MOEINF_HOME", str(tmp_path / "home"))
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text("FROM demo\nSYSTEM Speak as a king.\n")
    with caplog.at_level(logging.WARNING, "moeinf"):
        for words in (
            ["pull", "demo"],
            ["cp", "demo", "other"],
            ["create", "king", "-f", str(modelfile)],
            ["run", "demo", "Once", "-n", "3", "--prefix-disk", "1MB"],
            ["rm", "demo"],
            ["prune"],
            ["verify", "other"],
        ):
            assert command(*words).code == 0, words
    assert [line for line in caplog.messages if "has no locks" in line] == caplog.messages[:1]
    left = [path.name for path in (tmp_path / "home").rglob("*") if path.name.endswith((".held", ".tmp"))]
    assert left == [] and "king:latest" in command("list").out
