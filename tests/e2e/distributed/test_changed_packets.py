"""Somebody between rank 0 and a worker changes, repeats or holds back what they send: the tokens stay the same."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from moeinf.config import RuntimeConfig
from moeinf.distributed import peer
from moeinf.distributed.proof import ANSWER_BYTES, GREETING_BYTES, PROOF_BYTES
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.store.library import StoredModel
from tests.support.ranks.workers import Workers

MEETING_BYTES = {"rank 0": GREETING_BYTES + PROOF_BYTES, "worker": GREETING_BYTES + ANSWER_BYTES}
Change = Callable[[bytes], bytes]


class Between:
    """An address that passes everything on to a worker, and changes once what one side sends after its meeting."""

    def __init__(self, worker: str, side: str, change: Change, untouched: int) -> None:
        """untouched: bytes behind the meeting that are passed on as they are, before the piece that is changed."""
        host, port = worker.rsplit(":", 1)
        self._worker, self._side, self._change = (host, int(port)), side, change
        self._left = MEETING_BYTES[side] + untouched
        self.changes = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                there = socket.create_connection(self._worker)
                first = not self.changes and self._left > 0
                for side, source, to in (("rank 0", here, there), ("worker", there, here)):
                    pass_on = self._changing if first and side == self._side else lambda data: data
                    threading.Thread(target=self._pump, args=(source, to, pass_on), daemon=True).start()

    def _pump(self, source: socket.socket, to: socket.socket, pass_on: Change) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 20):
                to.sendall(pass_on(data))
        for each in (source, to):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _changing(self, data: bytes) -> bytes:
        if self.changes or len(data) <= self._left:
            self._left -= len(data)
            return data
        self.changes += 1
        return data[: self._left] + self._change(data[self._left :])

    def close(self) -> None:
        self._listener.close()


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("changed")) as started:
        yield started


def tokens(model: Model) -> list[int]:
    model.generator.sequences.last.clear()
    return model.generate("Once upon a time", model.params(temperature=0.0, num_predict=6, stop=())).token_ids


def flipped(data: bytes) -> bytes:
    """A low bit of a number in the middle of a message: finite, and another."""
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("side", ["rank 0", "worker"])
@pytest.mark.parametrize("change", [flipped, lambda data: data + data], ids=["a bit flipped", "sent twice"])
def test_what_was_changed_on_its_way_is_not_computed_with(
    workers: Workers, demo: StoredModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, side: str, change: Change
) -> None:
    monkeypatch.setattr(peer, "FIRST_RETRY_S", 60.0)  # not again in this test
    config, notices = {"threads": 1, "expert_cache": "30%"}, list[str]()
    with Model(demo, RuntimeConfig.of(**config)) as model:
        wanted = tokens(model)
    worker = workers.start(demo, expert_cache="60%")
    between = Between(worker.address, side, change, untouched=20_000)
    config |= {"workers": between.address, "worker_key_file": str(workers.key_file)}
    try:
        with Model(demo, RuntimeConfig.of(**config), Reporting(notices.append)) as model:
            assert [tokens(model) for _ in range(3)] == [wanted] * 3
    finally:
        between.close()
        workers.end_all()
    assert between.changes == 1
    assert any("is lost" in each for each in notices), notices
