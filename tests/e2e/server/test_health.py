"""GET /health tells where the server can no longer answer."""

from __future__ import annotations

import httpx
import pytest

from moeinf.server.turns.answer_worker import Worker
from moeinf.store.library import StoredModel
from tests.support.live_server import live_server


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_server_whose_model_thread_has_ended_is_not_healthy(
    demo: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object, **more: object) -> None:
        raise MemoryError

    asked = {"model": "demo", "prompt": "Once", "max_tokens": 1}
    with live_server(demo) as server:
        assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
        monkeypatch.setattr(Worker, "_take_turn", fail)
        monkeypatch.setattr("moeinf.server.turns.opened.log.error", fail)
        assert httpx.post(f"{server.url}/v1/completions", json=asked, timeout=30).status_code == 503  # begun, given up
        server.worker._thread.join(10)
        health = httpx.get(f"{server.url}/health")
        assert health.status_code == 503 and "has ended; restart the server" in health.text
        answer = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=10)
        assert answer.status_code == 503 and "has ended; restart the server" in answer.text
