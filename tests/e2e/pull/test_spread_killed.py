"""kill -9 at any point of spreading, dividing and gathering: the model is whole, and repeating it ends as one goes."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.stored.other_disks import other_disks
from moeinf.pull import spreading
from moeinf.store.library import Library, StoredModel
from moeinf.store.spread.copy_list import CopyList
from moeinf.store.spread.verify_copy import copy_faults
from moeinf.store.spread.whole import fault_of
from moeinf.store.verify import verify

FALLIBLE = ("open", "pwrite", "ftruncate", "fsync", "replace", "mkdir", "unlink", "rmdir", "preadv")
KILLS = 12
WORDS = ("spread", "divide", "gather")

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["moeinf.pull.spreading", __name__])


def child(word: str, home: Path, second: Path, kill_at: int, report: Path | None) -> None:
    """Kills itself at the n-th point, or tells how many points there were."""
    last = [0]

    def counted(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        for _ in ("before", "after"):
            last[0] += 1
            if last[0] == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if _ == "before":
                result = real(*args, **kwargs)
        return result

    for name in FALLIBLE:
        setattr(os, name, partial(counted, getattr(os, name)))
    spreading._share_of_store = lambda *_: 0.5
    carry_out(word, Library(home).find("demo"), second)
    if report:
        report.write_text(str(last[0]))


def carry_out(word: str, stored: StoredModel, second: Path) -> None:
    if word == "gather":
        spreading.gather(stored)
    else:
        getattr(spreading, word)(stored, second)


def run(*args: Any) -> int | None:
    process = context.Process(target=child, args=args)
    process.start()
    process.join(600)  # far beyond what a busy machine takes
    assert process.exitcode is not None, "it hangs"
    return process.exitcode


def check(home: Path) -> None:
    """The model is sound, and what is taken for a copy of it too."""
    stored = Library(home).find("demo")
    assert verify(stored) == []
    others = other_disks(stored, RuntimeConfig(), lambda line: None)
    for copy in CopyList(home).all():
        if not copy.divided and not fault_of(copy, stored):
            assert copy_faults(copy, stored, lambda num_bytes: None) == [] and others.paths


@pytest.mark.parametrize("word", WORDS)
def test_a_kill_at_any_moment_leaves_a_whole_model(word: str, demo: StoredModel, tmp_path: Path) -> None:
    def begin(name: str) -> tuple[Path, Path]:
        home, second = tmp_path / name / "home", tmp_path / name / "second"
        shutil.copytree(demo.home, home)
        second.mkdir()
        if word == "gather":
            assert run("divide", home, second, 0, None) == 0
        return home, second

    home, second = begin("whole")
    assert run(word, home, second, 0, tmp_path / "points") == 0
    points, generator = int((tmp_path / "points").read_text()), random.Random(WORDS.index(word))
    expected = listing(second)
    for number in range(KILLS):
        home, second = begin(str(number))
        at = generator.randint(1, points) if number else points - 4
        assert run(word, home, second, at, None) == -signal.SIGKILL
        check(home)
        assert run(word, home, second, 0, None) == 0
        check(home)
        assert listing(second) == expected


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
