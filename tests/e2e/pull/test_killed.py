"""kill -9 at chosen points of a pull: a model is absent or complete, and a repeated pull ends in the same bytes."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moeinf.config.pull_options import PullOptions
from moeinf.pull.pull import pull
from moeinf.store.library import Library
from moeinf.store.verify import verify
from tests.support.checkpoints import content, write_checkpoint
from tests.support.hub_server import HEAD_BYTES, RANGE_BYTES, REPO, Hub, point_client_at, serving
from tests.support.sample import SAMPLED

WINDOW = 4 * RANGE_BYTES
FALLIBLE = ("open", "pwrite", "ftruncate", "fsync", "replace", "rename", "mkdir", "unlink", "rmdir", "preadv")
SEEDS = range(3 if SAMPLED else 6)
KILLS = 2  # of each seed, before the pull that may finish

# A server process that has imported once what this file needs forks a child in 10 ms; nothing of a pull happens in it
# before the fork.
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["moeinf.models.families.qwen.qwen3_moe", "moeinf.pull.hub.repository", __name__])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def server(checkpoint: Path) -> Iterator[Hub]:
    with serving(checkpoint) as hub:
        yield hub


def count_calls(then: Callable[[int], None]) -> None:
    """Calls `then` with 1, 2, 3, ... before and after every operation on files in this process."""
    calls = iter(range(1, 1 << 30))

    def counted(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        then(next(calls))
        result = real(*args, **kwargs)
        then(next(calls))
        return result

    for name in FALLIBLE:
        setattr(os, name, partial(counted, getattr(os, name)))


def child(source: str, home: Path, endpoint: str, kill_at: int, report: Path | None, quant: str | None = None) -> None:
    """A pull that kills itself at the n-th point, or tells how many points there were."""
    if endpoint:
        point_client_at(endpoint, home, pytest.MonkeyPatch())
    last = [0]

    def then(number: int) -> None:
        last[0] = number
        if number == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    count_calls(then)
    pull(source, PullOptions(name="m:latest", quant=quant), home=home)
    if report:
        report.write_text(str(last[0]))


def run(*args: Any) -> int | None:
    process = context.Process(target=child, args=args)
    process.start()
    process.join(600)  # far beyond what a busy machine takes
    assert process.exitcode is not None, "the pull hangs"
    return process.exitcode


def absent_or_complete(home: Path, reference: dict[str, str]) -> bool:
    """Whether the model is there; fails where it is there and not whole."""
    models = Library(home).list()
    for model in models:
        assert verify(model) == [] and content(model.path) == reference
    return bool(models)


Whole = tuple[int, dict[str, str]]  # number of kill points in an uninterrupted pull, and what it stores


def whole(source: str, endpoint: str, folder: Path, quant: str | None = None) -> Whole:
    assert run(source, folder / "home", endpoint, 0, folder / "points", quant) == 0
    return int((folder / "points").read_text()), content(Library(folder / "home").find("m").path)


@pytest.fixture(scope="module")
def whole_folder(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return whole(str(checkpoint), "", tmp_path_factory.mktemp("folder"))


@pytest.fixture(scope="module")
def whole_quantised(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return whole(str(checkpoint), "", tmp_path_factory.mktemp("quantised"), "q8_0")


@pytest.fixture(scope="module")
def whole_hub(server: Hub, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return whole(REPO, server.endpoint, tmp_path_factory.mktemp("hub"))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pull_from_a_folder_survives_kills(seed: int, checkpoint: Path, whole_folder: Whole, tmp_path: Path) -> None:
    points, reference = whole_folder
    generator, home = random.Random(seed), tmp_path / "killed"
    for _ in range(KILLS):
        status = run(str(checkpoint), home, "", generator.randint(1, points), None)
        assert status in (0, -signal.SIGKILL)
        assert absent_or_complete(home, reference) or status != 0
    assert run(str(checkpoint), home, "", 0, None) == 0
    assert absent_or_complete(home, reference) and Library(home).partials() == []


@pytest.mark.parametrize("seed", SEEDS[: len(SEEDS) // 2 + 1])
def test_a_pull_that_quantises_survives_kills(
    seed: int, checkpoint: Path, whole_quantised: Whole, tmp_path: Path
) -> None:
    points, reference = whole_quantised
    generator, home = random.Random(200 + seed), tmp_path / "killed"
    for _ in range(KILLS):
        assert run(str(checkpoint), home, "", generator.randint(1, points), None, "q8_0") in (0, -signal.SIGKILL)
        absent_or_complete(home, reference)
    assert run(str(checkpoint), home, "", 0, None, "q8_0") == 0
    assert absent_or_complete(home, reference) and Library(home).partials() == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pull_from_the_hub_survives_kills_and_fetches_little_again(
    seed: int, server: Hub, whole_hub: Whole, tmp_path: Path
) -> None:
    points, reference = whole_hub
    generator, home = random.Random(100 + seed), tmp_path / "killed"
    server.seen.clear()
    for _ in range(KILLS):
        status = run(REPO, home, server.endpoint, generator.randint(1, points), None)
        assert status in (0, -signal.SIGKILL)
        assert absent_or_complete(home, reference) or status != 0
    assert run(REPO, home, server.endpoint, 0, None) == 0
    assert absent_or_complete(home, reference) and Library(home).partials() == []
    size = sum(path.stat().st_size for path in server.folder.glob("*.safetensors"))
    headers = 4 * (KILLS + 1) * 8 * HEAD_BYTES
    assert server.sent_bytes(".safetensors") <= size + KILLS * WINDOW + headers


@pytest.mark.parametrize("step", ["rename", "names", "journal"])
def test_a_pull_survives_a_kill_at_each_step_of_publishing(
    step: str, checkpoint: Path, whole_folder: Whole, tmp_path: Path
) -> None:
    """The last points of a pull: model moved, name written, work folder deleted."""
    points, reference = whole_folder
    back = {"rename": range(41, 61), "names": range(21, 41), "journal": range(1, 21)}[step]
    for distance in back[:: 8 if SAMPLED else 4]:
        home = tmp_path / f"killed-{distance}"
        assert run(str(checkpoint), home, "", points - distance, None) == -signal.SIGKILL
        absent_or_complete(home, reference)
        assert run(str(checkpoint), home, "", 0, None) == 0
        assert absent_or_complete(home, reference) and Library(home).partials() == []
