"""No answer of a server tells in which folders of the machine its files lie."""

from __future__ import annotations

import httpx
import pytest

from moeinf.server.serve import HttpServer
from moeinf.store.library import StoredModel

GETS = ["/health", "/metrics", "/api/tags", "/api/ps", "/api/version", "/v1/models", "/v1/models/demo"]


@pytest.mark.parametrize("path", GETS)
def test_what_is_read(server: HttpServer, demo: StoredModel, path: str) -> None:
    httpx.post(f"{server.url}/api/generate", json={"model": "demo", "prompt": "a", "options": {"num_predict": 1}})
    answer = httpx.get(f"{server.url}{path}", timeout=60)
    assert answer.status_code == 200
    assert str(demo.path.parents[1]) not in answer.text


def test_what_is_shown(server: HttpServer, demo: StoredModel) -> None:
    answer = httpx.post(f"{server.url}/api/show", json={"model": "demo", "verbose": True}, timeout=60)
    assert answer.status_code == 200
    assert str(demo.path.parents[1]) not in answer.text
