"""`moeinf worker` as a process: strangers do not end it, and signals do."""

from __future__ import annotations

import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from moeinf.config import RuntimeConfig
from moeinf.distributed import peer
from moeinf.distributed.proof import GREETING_BYTES, Caller, Purpose
from moeinf.engine.cpu import CpuRunner
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.store.library import StoredModel
from tests.support.fuzzing import mutate_bytes

KEY, NUM_FILES, SECONDS = "a key that all ranks of a test share", 48, 30.0
STORE_OF_TORCH = b"\x3c\x85\xf7\xce" + bytes(8)  # what an older moeinf met over


class Worker:
    """`moeinf worker demo`, with few descriptors. Use `with`."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.key_file, self._log = folder / "key", folder / "log"
        self.key_file.write_text(KEY)
        words = ["worker", "demo", "--bind", "127.0.0.1:0", "--key-file", str(self.key_file), "--threads", "1"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "moeinf", *words],
                env=os.environ | {"MOEINF_HOME": str(home)},
                stderr=log,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (NUM_FILES, NUM_FILES)),
            )
        found = re.search(r" on 127\.0\.0\.1:(\d+)", self.said(" on 127.0.0.1:"))
        assert found
        self.port = int(found[1])

    def said(self, wanted: str) -> str:
        """All that it has said, once that is part of it."""
        give_up_at = time.monotonic() + SECONDS
        while wanted not in (text := self._log.read_text()):
            assert time.monotonic() < give_up_at and self.process.poll() is None, f"it has said {text!r}"
            time.sleep(0.01)
        return text

    def stranger(self, sent: bytes = b"") -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port), SECONDS)
        with suppress(ConnectionError):  # it was refused while it spoke
            made.sendall(sent)
        return made

    def ends(self, number: signal.Signals) -> bool:
        """Whether this signal ends it, within two seconds and what a busy machine takes."""
        self.process.send_signal(number)
        return self.process.wait(10) == -number

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def worker(tmp_path: Path, demo: StoredModel) -> Iterator[Worker]:
    with Worker(tmp_path, demo.path.parents[1]) as started:
        yield started


def tokens(model: Model) -> list[int]:
    model.generator.sequences.last.clear()
    return model.generate("Once upon a time", model.params(temperature=0.0, num_predict=6, stop=())).token_ids


def owned_there(model: Model) -> int:
    assert isinstance(model.runner, CpuRunner) and model.runner.star is not None
    return int((model.runner.star.owner == 1).sum())


def test_a_worker_outlives_strangers_and_a_rank_0_that_lies(
    worker: Worker, demo: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, greeting = random.Random(34), Caller(KEY.encode(), Purpose.SERVE, b"").greeting
    known = [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", STORE_OF_TORCH, b"[" * 60_000, b"\x1b]0;title\x07"]
    for sent in (*known, *(mutate_bytes(greeting, rng) for _ in range(40))):
        worker.stranger(sent).close()
    for proof in (bytes(600), b"[" * 60_000, "é".encode() * 300, b'{"mac": "a", "facts": "\\ud800"}'.ljust(600)):
        with worker.stranger(greeting) as stranger:
            assert len(stranger.recv(GREETING_BYTES)) == GREETING_BYTES
            stranger.sendall(proof)
    silent = [worker.stranger() for _ in range(2 * NUM_FILES)]  # more than the worker has descriptors
    monkeypatch.setattr(peer, "FIRST_RETRY_S", 0.1)
    config = {"threads": 1, "expert_cache": "30%"}
    with Model(demo, RuntimeConfig.of(**config)) as model:
        wanted = tokens(model)
    config |= {"workers": f"127.0.0.1:{worker.port}", "worker_key_file": str(worker.key_file)}
    notices: list[str] = []
    with Model(demo, RuntimeConfig.of(**config), Reporting(notices.append)) as model:
        assert tokens(model) == wanted and owned_there(model) > 0
        assert isinstance(model.runner, CpuRunner) and model.runner.star is not None
        connection = model.runner.star.connection(1)
        connection._link.send(b"\xff" * len(connection._frame), SECONDS)  # from somebody who has the key
        worker.said("rank 0 is not served any more: it sent a message of kind -1")
        assert tokens(model) == wanted  # without the worker, or with it again
        give_up_at = time.monotonic() + SECONDS
        while not owned_there(model):
            assert time.monotonic() < give_up_at, "the worker did not come back"
            tokens(model)
        assert len(notices) == 2 and "is lost" in notices[0] and "is here again" in notices[1]
        link = model.runner.star.connection(1)._link
        link.send(b"\0", SECONDS)  # a part of a message
        for each in silent:
            each.close()
        assert worker.ends(signal.SIGINT)
    lines = worker.said("").splitlines()
    assert all(line.isprintable() for line in lines) and "unexpected" not in "".join(lines)
    assert len([line for line in lines if line.startswith("refused ")]) < 10


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_that_waits_for_a_model_ends_at_once(tmp_path: Path, number: signal.Signals) -> None:
    with Worker(tmp_path, tmp_path / "empty") as worker:
        worker.said("is not stored here: waiting on 127.0.0.1:")
        with worker.stranger(Caller(KEY.encode(), Purpose.SERVE, b"").greeting) as stranger:
            assert stranger.recv(1)
            assert worker.ends(number)
