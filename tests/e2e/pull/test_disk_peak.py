"""A checkpoint that is quantised takes, at its peak, the disk of the result and of one shard."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from moeinf.config.pull_options import PullOptions
from moeinf.pull.events import SilentProgress, Verb
from moeinf.pull.pull import plan_pull, pull
from moeinf.store.library import Library
from tests.support.checkpoints import CONFIG, random_tensors, write_checkpoint
from tests.support.hub_server import REPO, point_client_at, serving

LARGER = CONFIG | {"hidden_size": 256, "moe_intermediate_size": 256}
BESIDE = 128 << 10  # bytes of the journal, the manifest and the tokenizer
SHARDS = 8


def used_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512 if path.is_file() else 0
        except FileNotFoundError:  # it has just been deleted
            continue
    return total


class Watching(SilentProgress):
    """Looks at the disk before and behind each file, and a hundred times a second beside."""

    def __init__(self, home: Path) -> None:
        self.peak, self._home, self._ended = 0, home, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def look(self) -> None:
        self.peak = max(self.peak, used_bytes(self._home))

    def _watch(self) -> None:
        while not self._ended.wait(0.01):
            self.look()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def start(self, verb: Verb, file: str, num_bytes: int, done_bytes: int) -> None:
        self.look()

    def finish(self) -> None:
        self.look()


@pytest.mark.parametrize("quant", ["q4_k", None])
def test_the_disk_needs_the_result_and_one_shard(
    quant: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_checkpoint(tmp_path / "checkpoint", random_tensors(LARGER), LARGER, SHARDS)
    shards = [path.stat().st_size for path in source.glob("*.safetensors")]
    home, options = tmp_path / "home", PullOptions(quant=quant)
    with serving(source) as hub:
        point_client_at(hub.endpoint, tmp_path, monkeypatch)
        planned = plan_pull(REPO, options, home=home).needed_bytes
        watching = Watching(home)
        try:
            stored = pull(REPO, options, home=home, progress=watching)
        finally:
            watching.close()
    result = sum(path.stat().st_size for path in stored.path.iterdir())
    assert watching.peak <= result + max(shards) + BESIDE < sum(shards) + result / 2, (watching.peak, result, shards)
    assert watching.peak <= planned + BESIDE, "what is asked of the disk before anything is fetched"
    assert used_bytes(home) <= result + BESIDE and len(Library(home).list()) == 1
    print(f"{quant}: shards {sum(shards)}, the largest {max(shards)}, result {result}, peak {watching.peak}")


def test_two_pulls_of_one_repository_fetch_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_checkpoint(tmp_path / "checkpoint")
    size = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    found = []
    with serving(source) as hub:
        point_client_at(hub.endpoint, tmp_path, monkeypatch)
        threads = [
            threading.Thread(target=lambda: found.append(pull(REPO, home=tmp_path / "home").id)) for _ in range(2)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        sent = hub.sent_bytes(".safetensors")
    assert len(found) == 2 and found[0] == found[1]
    assert sent < 1.5 * size, "the second waits, and finds it done"
