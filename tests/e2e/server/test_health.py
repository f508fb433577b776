"""GET /health tells where the server can no longer answer."""

from __future__ import annotations

import sys
import threading

import httpx
import pytest

from moeinf.server.turns.answer_worker import Worker
from moeinf.store.library import StoredModel
from tests.support.live_server import live_server
from tests.support.spoken_worker import until


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


@pytest.mark.skipif(sys.platform == "darwin", reason="no clock of another thread there")
def test_a_server_whose_model_thread_hangs_is_not_healthy_while_a_request_waits(
    demo: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"model": "demo", "prompt": "Once", "max_tokens": 1}
    hung, go_on, take_turn = threading.Event(), threading.Event(), Worker._take_turn

    def hang(worker: Worker) -> None:
        take_turn(worker)
        hung.set()
        go_on.wait()

    with live_server(demo) as server:
        monkeypatch.setattr(server.worker.pulse, "_look_s", 0.01)
        monkeypatch.setattr(Worker, "_take_turn", hang)
        asking = threading.Thread(target=httpx.post, args=(f"{server.url}/v1/completions",), kwargs={"json": asked})
        asking.start()
        try:
            assert hung.wait(30)
            until(lambda: httpx.get(f"{server.url}/health").status_code == 503)
            health = httpx.get(f"{server.url}/health")
        finally:
            go_on.set()
        assert health.status_code == 503 and "requests wait, and it does nothing" in health.text
        asking.join()
        until(lambda: not server.worker.pulse.hangs)
        assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
