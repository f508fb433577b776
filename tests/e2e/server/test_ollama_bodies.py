"""Whatever a body holds, each route of ollama's API answers in its form, and never with a fault of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moeinf.config import RuntimeConfig
from moeinf.pull.pull import ensure
from moeinf.store.library import Library
from tests.support.any_json import ANYTHING
from tests.support.live_server import live_server

EXAMPLES = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
NAMES = st.sampled_from(["demo", "demo:latest", "nobody"]) | st.text(max_size=8).filter(lambda name: "/" not in name)
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["system", "user", "assistant", "tool"]) | ANYTHING,
        "content": st.text(max_size=20) | ANYTHING,
        "thinking": ANYTHING,
        "tool_calls": ANYTHING,
        "tool_name": ANYTHING,
        "images": ANYTHING,
    },
)
OPTION_NAMES = ["temperature", "top_k", "top_p", "min_p", "seed", "num_predict", "stop", "repeat_last_n", "num_keep"]
FIELDS = {
    "stream": st.booleans() | ANYTHING,
    "options": st.dictionaries(st.sampled_from(OPTION_NAMES), ANYTHING, max_size=4) | ANYTHING,
    "keep_alive": st.sampled_from(["5m", 0, -1]) | ANYTHING,
    "think": st.sampled_from([False, "low"]) | ANYTHING,
    "format": ANYTHING,
    "prompt": st.text(max_size=20) | ANYTHING,
    "system": st.text(max_size=8) | ANYTHING,
    "raw": st.booleans() | ANYTHING,
    "messages": st.lists(MESSAGE, max_size=3) | ANYTHING,
    "tools": ANYTHING,
    "suffix": ANYTHING,
    "images": ANYTHING,
    "context": ANYTHING,
    "template": ANYTHING,
    "verbose": ANYTHING,
    "name": NAMES | ANYTHING,
    "source": NAMES | ANYTHING,
    "destination": NAMES | ANYTHING,
    "logprobs": ANYTHING,
}
BODIES = st.fixed_dictionaries({"model": NAMES | ANYTHING}, optional=FIELDS) | ANYTHING
ROUTES = ("chat", "generate", "show", "copy", "create", "push", "embed", "embeddings")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Asks a server over a store of its own; a short context keeps answers short."""
    home = tmp_path_factory.mktemp("home")
    ensure("demo", home=home)
    config = RuntimeConfig.of(device="cpu", context=32)
    with live_server(Library(home), config=config) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def check(response: httpx.Response) -> None:
    """An answer or an error in ollama's form: one object, or one a line."""
    assert response.status_code < 500, response.text
    lines = response.text.splitlines() if "ndjson" in response.headers.get("content-type", "") else [response.text]
    told = [json.loads(line) for line in lines if response.content]
    assert all(isinstance(each, dict) for each in told)
    if response.status_code != 200:
        assert isinstance(told[0]["error"], str) and told[0]["error"]
    assert "unexpected error" not in response.text


@pytest.mark.parametrize("route", ROUTES)
@EXAMPLES
@given(body=BODIES)
def test_any_body_is_answered_in_form(client: httpx.Client, route: str, body: Any) -> None:
    check(client.post(f"/api/{route}", json=body))


@EXAMPLES
@given(body=BODIES.filter(lambda body: "demo" not in str(body)))
def test_any_body_of_delete_and_pull_is_answered_in_form(client: httpx.Client, body: Any) -> None:
    check(client.request("DELETE", "/api/delete", json=body))
    if not (isinstance(body, dict) and "/" in f"{body.get('model')}{body.get('name')}"):  # the Hub is not asked
        check(client.post("/api/pull", json=body))


@pytest.mark.parametrize("route", (*ROUTES, "pull"))
@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b'{"model": "demo"', b"null", b'"demo"'])
def test_a_body_that_is_no_json_object_is_refused(client: httpx.Client, route: str, body: bytes) -> None:
    response = client.post(f"/api/{route}", content=body, headers={"Content-Type": "application/json"})
    check(response)
    assert response.status_code == 400
