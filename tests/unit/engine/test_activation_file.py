"""What runs have learned about routing: nothing is lost of several at once, and little of one that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moeinf.engine.activation_file import FILE, SAVED_AFTER, ActivationFile
from moeinf.engine.stored.hit_record import load_hits, record_hits
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.policy.eamc import CAPACITY, ActivationCollection
from moeinf.runtime.policy.policy_trace import ActivationMatrix
from moeinf.types import MoeShape

SHAPE = MoeShape(2, 300, 2)


@pytest.fixture
def stored(tmp_path: Path) -> Any:
    return SimpleNamespace(path=tmp_path, manifest=SimpleNamespace(moe=SHAPE))


def matrix(number: int) -> ActivationMatrix:
    made = ActivationMatrix(SHAPE)
    made.counts[:, number] = 7
    return made


def kept(folder: Path) -> list[int]:
    """The numbers of the matrices in the file."""
    if not (folder / FILE).exists():
        return []
    found = ActivationCollection.loads((folder / FILE).read_bytes(), SHAPE)
    return sorted(int(found.counts(entry)[0].argmax()) for entry in range(len(found)))


@pytest.fixture
def said() -> list[str]:
    return []


def test_two_runs_at_once_lose_nothing(stored: Any, said: list[str]) -> None:
    runs = [ActivationFile(stored, said.append) for _ in range(3)]
    for number in range(30):
        runs[number % 3].add(matrix(number))
    for run in runs:
        run.save()
        run.save()
    assert kept(stored.path) == list(range(30)) and said == []
    later = ActivationFile(stored, said.append)
    assert len(later.collection) == 30


def test_runs_that_write_in_the_same_moment_wait_for_each_other(stored: Any, said: list[str]) -> None:
    def learn(first: int) -> None:
        run = ActivationFile(stored, said.append)
        for number in range(first, first + 20):
            run.add(matrix(number))
            run.save()

    threads = [threading.Thread(target=learn, args=(first,)) for first in (0, 20, 40, 60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kept(stored.path) == list(range(80)) and said == []


def test_a_run_that_is_killed_loses_its_last_requests_alone(stored: Any, said: list[str]) -> None:
    run = ActivationFile(stored, said.append)
    for number in range(3 * SAVED_AFTER - 1):
        run.add(matrix(number))
        assert len(kept(stored.path)) >= number + 1 - SAVED_AFTER
    assert kept(stored.path) == list(range(2 * SAVED_AFTER))


def test_a_full_collection_stays_full_and_bounded(stored: Any, said: list[str]) -> None:
    run = ActivationFile(stored, said.append)
    for number in range(CAPACITY + 20):
        run.add(matrix(number))
    run.save()
    assert len(kept(stored.path)) == CAPACITY and kept(stored.path)[-1] == CAPACITY + 19


def test_what_is_only_replayed_is_not_kept(stored: Any, said: list[str]) -> None:
    run = ActivationFile(stored, said.append, learns=False)
    for number in range(2 * SAVED_AFTER):
        run.add(matrix(number))
    run.save()
    assert kept(stored.path) == [] and len(run.collection) == 2 * SAVED_AFTER and said == []


def test_a_file_that_is_damaged_or_deleted_meanwhile_is_begun_anew(stored: Any, said: list[str]) -> None:
    run = ActivationFile(stored, said.append)
    for damage in (lambda path: path.write_bytes(b"no archive"), os.unlink):
        run.add(matrix(1))
        run.save()
        damage(stored.path / FILE)
        run.add(matrix(2))
        run.save()
        assert kept(stored.path) == [2]
        run = ActivationFile(stored, said.append)


def test_a_disk_that_refuses_is_told_of_and_asked_again(stored: Any, said: list[str]) -> None:
    run = ActivationFile(stored, said.append)
    (stored.path / FILE).mkdir()
    run.add(matrix(1))
    run.save()
    assert len(said) == 1 and FILE in said[0]
    (stored.path / FILE).rmdir()
    run.save()
    assert kept(stored.path) == [1]


def test_hits_of_runs_that_end_in_the_same_moment_are_added_up(stored: Any) -> None:
    stats = replace(CacheStats(), hits=6, misses=4)
    threads = [threading.Thread(target=record_hits, args=(stored, 5, stats)) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert load_hits(stored)[5].hits == 12 * 6


def test_a_process_that_holds_the_lock_lets_go_of_it_when_it_is_killed(stored: Any, said: list[str]) -> None:
    code = (
        "import sys, pathlib; from moeinf.store.processes.locks import locked\n"
        "with locked(pathlib.Path(sys.argv[1]), folder=True): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(stored.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    run = ActivationFile(stored, said.append)
    run.add(matrix(1))
    waiting = threading.Thread(target=run.save)
    waiting.start()
    assert kept(stored.path) == [] and waiting.is_alive()
    holder.kill()
    holder.communicate()
    waiting.join()
    assert kept(stored.path) == [1] and np.all(run.collection.counts(0)[:, 1] == 7)
