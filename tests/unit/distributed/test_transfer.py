"""A model on its way from rank 0 to a worker."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from moeinf.distributed.link import Link
from moeinf.distributed.transfer import receive_model, send_model
from moeinf.store.library import Library, StoredModel
from tests.support.checkpoints import content


def test_what_is_being_received_is_not_taken_for_a_leftover(demo: StoredModel, tmp_path: Path) -> None:
    here, there = socket.socketpair()
    library, running = Library(tmp_path), list[bool]()

    def look(done: int, total: int) -> None:
        running.extend(each.running for each in library.partials())
        assert library.prune().num_pulls == 0

    sender = threading.Thread(target=send_model, args=(Link(here), demo))
    sender.start()
    received = receive_model(Link(there), library, "mine", look)
    sender.join(60)
    assert running and all(running) and library.partials() == []
    assert received.name == "mine:latest" and received.id == demo.id
    same = content(demo.path)
    assert content(received.path).items() <= same.items() and "manifest.json" in same
    assert not list((tmp_path / "partial").glob("*"))
