"""Ranks as hosts: the worker in a network namespace of its own, joined to this one by a cable that can be cut."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from moeinf.config import RuntimeConfig
from moeinf.distributed import peer
from moeinf.engine.cpu import CpuRunner
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.store.library import StoredModel
from tests.support.ranks.workers import Workers

HERE, THERE = "10.213.77.1", "10.213.77.2"


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)


class Cable:
    """A pair of veth devices; one end is in a namespace that is made here."""

    def __init__(self) -> None:
        number = os.getpid() % 10000
        self.namespace, self._end, other = f"moeinf{number}", f"mi{number}a", f"mi{number}b"
        ip(f"netns add {self.namespace}")
        ip(f"link add {self._end} type veth peer name {other} netns {self.namespace}")
        ip(f"addr add {HERE}/30 dev {self._end}")
        ip(f"link set {self._end} up")
        for words in (f"addr add {THERE}/30 dev {other}", f"link set {other} up", "link set lo up"):
            ip(f"-n {self.namespace} {words}")

    def cut(self) -> None:
        ip(f"link set {self._end} down")

    def mend(self) -> None:
        ip(f"link set {self._end} up")

    def remove(self) -> None:
        ip(f"netns del {self.namespace}")


@pytest.fixture(scope="module")
def cable() -> Iterator[Cable]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root, and the command ip")
    made = Cable()
    yield made
    made.remove()


@pytest.fixture(scope="module")
def far(cable: Cable, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("far"), ("ip", "netns", "exec", cable.namespace), THERE) as started:
        yield started


def tokens(model: Model) -> list[int]:
    model.generator.sequences.last.clear()
    params = model.params(temperature=0.0, num_predict=24, stop=())
    return model.generate("Once upon a time, in a village by the sea", params).token_ids


def owned_there(model: Model) -> int:
    assert isinstance(model.runner, CpuRunner) and model.runner.star is not None
    return int((model.runner.star.owner == 1).sum())


def test_tokens_are_the_same_through_a_cable_that_is_cut_and_mended(
    cable: Cable, far: Workers, demo: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "SILENT_S", 1.0)
    monkeypatch.setattr(peer, "PING_S", 0.2)
    monkeypatch.setattr(peer, "FIRST_RETRY_S", 0.2)
    monkeypatch.setattr(peer, "LAST_RETRY_S", 0.5)
    config = {"threads": 1, "expert_cache": "30%"}
    with Model(demo, RuntimeConfig.of(**config)) as model:
        wanted = tokens(model)
    notices: list[str] = []
    ranks = far.options(far.start(demo, expert_cache="50%"))
    with Model(demo, RuntimeConfig.of(**config, **ranks), Reporting(notices.append)) as model:
        assert tokens(model) == wanted and owned_there(model) > 0
        cable.cut()
        assert tokens(model) == wanted and owned_there(model) == 0
        assert f"worker {THERE}" in notices[0] and "is lost" in notices[0]
        cable.mend()
        give_up_at = time.monotonic() + 90  # the worker first has to see that this machine was gone: 30 s
        while not owned_there(model):
            assert time.monotonic() < give_up_at, f"the worker did not come back: {notices}"
            time.sleep(0.2)
            tokens(model)
        assert tokens(model) == wanted and "is here again" in notices[-1]


def test_a_worker_listens_on_its_address_alone(cable: Cable, far: Workers, demo: StoredModel, tmp_path: Path) -> None:
    worker = far.start(demo)
    port = worker.address.rpartition(":")[2]
    listening = subprocess.run(
        ["ip", "netns", "exec", cable.namespace, "cat", "/proc/net/tcp", "/proc/net/tcp6"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    places = [line.split()[1] for line in listening.splitlines() if len(line.split()) > 3 and line.split()[3] == "0A"]
    there = "".join(f"{int(part):02X}" for part in reversed(THERE.split(".")))
    assert f"{there}:{int(port):04X}" in places
    assert all(place.startswith(there) for place in places), f"something else listens: {places}"
