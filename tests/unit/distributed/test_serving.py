"""A worker whose work fails says so."""

from __future__ import annotations

from typing import Any

import pytest

from moeinf.distributed import serving
from moeinf.distributed.frames import ReplyForm, RequestForm
from moeinf.distributed.meeting import Facts, Offer
from moeinf.distributed.serving import WorkerServer


class Visited:
    """Of moeinf.distributed.meeting.Listener what a server calls: rank 0 is here, and goes on to ping."""

    def __init__(self) -> None:
        self._pings = 0

    def accept(self, *_: Any) -> object:
        return object()

    def pings(self) -> int:
        self._pings += 1
        return self._pings

    def refuse_others(self, why: str) -> None:
        pass


def test_what_nobody_expected_ends_the_worker_while_rank_0_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def __init__(self, *_: Any) -> None:
            pass

        def serve(self) -> str:
            raise ValueError("of a kernel")

    monkeypatch.setattr(serving, "Session", Failing)
    listener: Any = Visited()
    experts: Any = None
    server = WorkerServer(listener, Facts("", "", ""), Offer(1, 1.0), experts, lambda line: None)
    with pytest.raises(ValueError, match="of a kernel"):
        server.run(RequestForm(1, 4), ReplyForm(4))
