"""Anthropic's own client against a live server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message, MessageParam, TextBlock, TextBlockParam, ThinkingBlock
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf.pull.pull import pull
from moeinf.server.serve import HttpServer
from moeinf.store.library import StoredModel
from tests.support.live_server import live_server
from tests.support.thinker import write_thinker

HI: list[MessageParam] = [{"role": "user", "content": "Tell me of a dog"}]
GREEDY = {"temperature": 0}  # which this client no longer names


@pytest.fixture
def client(server: HttpServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def thinking_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """Serves a model that thinks: "Let me see" before "Hello there"."""
    folder = tmp_path_factory.mktemp("thinker")
    with live_server(pull(str(write_thinker(folder / "thinker")), home=folder / "home")) as running:
        yield running


@pytest.fixture
def thinker(thinking_server: HttpServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=thinking_server.url, api_key="any", max_retries=0) as client:
        yield client


def say(client: anthropic.Anthropic, **asked: Any) -> Message:
    message: Message = client.messages.create(**asked)
    return message


def events_of(url: str, **asked: Any) -> list[dict[str, Any]]:
    """The raw events of a streamed message."""
    answer = httpx.post(f"{url}/v1/messages?beta=true", json={"stream": True, **asked}, timeout=60)
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines]


def test_a_message_and_the_same_streamed(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(model="demo", max_tokens=12, messages=HI, extra_body=GREEDY)
    assert (whole.role, whole.type, whole.model, whole.stop_reason) == ("assistant", "message", "demo", "max_tokens")
    (block,) = whole.content
    assert isinstance(block, TextBlock) and block.text
    assert whole.usage.output_tokens == 12 and whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0) > 2
    assert whole._request_id and whole._request_id.startswith("req_")
    assert whole.model_extra is not None and whole.model_extra["moeinf"]["hits"] >= 0
    with client.messages.stream(model="demo", max_tokens=12, messages=HI, extra_body=GREEDY) as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert said == block.text == final.content[0].to_dict()["text"] and final.stop_reason == "max_tokens"
    cached = final.usage.cache_read_input_tokens or 0
    assert (
        cached > 0
        and final.usage.input_tokens + cached == client.messages.count_tokens(model="demo", messages=HI).input_tokens
    )


def test_models(client: anthropic.Anthropic) -> None:
    (model,) = (each for each in client.models.list() if each.id == "demo:latest")
    assert (model.type, model.display_name) == ("model", "demo:latest")
    assert model.created_at.tzinfo is not None
    assert client.models.retrieve("demo") == model


def test_the_beta_client_and_what_it_sends_along(client: anthropic.Anthropic) -> None:
    answer = client.beta.messages.create(
        model="demo",
        max_tokens=3,
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}
        ],
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        metadata={"user_id": "me"},
        betas=["prompt-caching-2024-07-31"],
        service_tier="auto",
        extra_body={"context_management": {"edits": []}},
    )
    assert answer.usage.output_tokens == 3


def test_a_stop_sequence_is_named(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": "demo", "max_tokens": 24, "messages": HI, "extra_body": GREEDY}
    whole = say(client, **asked)
    (block,) = whole.content
    assert isinstance(block, TextBlock)
    word = block.text.split()[3]
    stopped = say(client, **asked, stop_sequences=["@@", word])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", word)
    (cut,) = stopped.content
    assert isinstance(cut, TextBlock) and cut.text == block.text[: block.text.index(word)]


def test_thoughts_are_blocks_of_their_own(thinker: anthropic.Anthropic, thinking_server: HttpServer) -> None:
    asked: dict[str, Any] = {"model": "thinker", "max_tokens": 40, "messages": [{"role": "user", "content": "Hello"}]}
    whole = say(thinker, **asked, thinking={"type": "enabled", "budget_tokens": 1024})
    thought, said = whole.content
    assert isinstance(thought, ThinkingBlock) and thought.thinking == "Let me see" and thought.signature
    assert isinstance(said, TextBlock) and said.text == "Hello there"
    assert whole.stop_reason == "end_turn"
    with thinker.messages.stream(**asked, thinking={"type": "adaptive"}) as stream:
        final = stream.get_final_message()
        assert [block.to_dict(exclude_unset=True) for block in final.content] == [thought.to_dict(), said.to_dict()]
    silent = say(thinker, **asked, thinking={"type": "disabled"})
    assert silent.content == [said]
    hidden = say(thinker, **asked, thinking={"type": "adaptive", "display": "omitted"}).content[0]
    assert isinstance(hidden, ThinkingBlock) and hidden.thinking == "" and hidden.signature
    types = [event["type"] for event in events_of(thinking_server.url, **asked)]
    assert [kind for kind, _ in groupby(types) if kind != "ping"] == [
        "message_start",
        *["content_block_start", "content_block_delta", "content_block_stop"] * 2,
        "message_delta",
        "message_stop",
    ]


def test_a_model_that_does_not_think(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": "demo", "max_tokens": 2, "messages": HI}
    for kind in ("disabled", "adaptive"):
        assert say(client, **asked, thinking={"type": kind}).usage.output_tokens == 2
    with pytest.raises(anthropic.BadRequestError, match="does not think"):
        say(client, **asked, thinking={"type": "enabled", "budget_tokens": 1024})


def test_noise_of_agents_costs_no_prefix(client: anthropic.Anthropic) -> None:
    def computed(sum_: str, left: int) -> int:
        system: list[TextBlockParam] = [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={sum_};"},
            {"type": "text", "text": "Once upon a time there was a king who had a ship and a dog."},
            {"type": "text", "text": f"<total_tokens>{left} tokens left</total_tokens>"},
        ]
        answer = client.messages.create(model="demo", max_tokens=1, system=system, messages=HI)
        return answer.usage.input_tokens

    assert computed("a1", 9000) > 1
    assert computed("b2", 8123) == 1  # the last token is always computed


def test_counting_loads_no_model(demo: StoredModel) -> None:
    with live_server(demo) as running, anthropic.Anthropic(base_url=running.url, api_key="any") as client:
        assert client.messages.count_tokens(model="demo", messages=HI, system="Be brief.").input_tokens > 5
        assert "moeinf_answers_total{" not in httpx.get(f"{running.url}/metrics").text
        with pytest.raises(anthropic.NotFoundError, match="not found"):
            client.messages.count_tokens(model="other", messages=HI)


WRONG: list[tuple[dict[str, Any], int, str]] = [
    ({"max_tokens": None}, 400, "max_tokens"),
    ({"max_tokens": -1}, 400, "max_tokens"),
    ({"temperature": -1}, 400, "temperature"),
    ({"messages": []}, 400, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, 400, "image"),
    ({"messages": [{"role": "user", "content": "word " * 5000}]}, 400, "prompt is too long"),
    ({"thinking": {"type": "sometimes"}}, 400, "thinking"),
    ({"model": "other"}, 404, "not found"),
    ({"keep_alive": "soon"}, 400, "keep_alive"),
]


@pytest.mark.parametrize(("change", "status", "named"), WRONG)
def test_what_cannot_be_done_is_refused_by_name(
    server: HttpServer, change: dict[str, Any], status: int, named: str
) -> None:
    asked = {"model": "demo", "messages": HI, "max_tokens": 3} | change
    answer = httpx.post(
        f"{server.url}/v1/messages", json={key: each for key, each in asked.items() if each is not None}
    )
    assert answer.status_code == status
    told = answer.json()
    assert told["type"] == "error" and named in told["error"]["message"]
    assert told["error"]["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
    assert told["request_id"] == answer.headers["request-id"]


def test_an_error_in_a_stream_reaches_the_client(client: anthropic.Anthropic) -> None:
    long: list[MessageParam] = [{"role": "user", "content": "word " * 5000}]
    with (
        pytest.raises(anthropic.APIStatusError, match="prompt is too long"),
        client.messages.stream(model="demo", max_tokens=3, messages=long) as stream,
    ):
        stream.until_done()


def test_keys_and_wrong_methods_are_refused_in_anthropics_form(demo: StoredModel) -> None:
    with live_server(demo, keys=("secret",)) as running:
        refused = httpx.post(f"{running.url}/v1/messages", json={})
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        with anthropic.Anthropic(base_url=running.url, api_key="secret") as client:
            assert client.messages.count_tokens(model="demo", messages=HI).input_tokens
        with anthropic.Anthropic(base_url=running.url, auth_token="secret") as client:
            assert client.messages.count_tokens(model="demo", messages=HI).input_tokens
        method = httpx.get(f"{running.url}/v1/messages", headers={"x-api-key": "secret"})
        assert (method.status_code, method.json()["type"]) == (405, "error")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KIND = st.sampled_from(["text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", "document", "x"])
NAMES = st.sampled_from(["text", "thinking", "input", "content", "id", "name", "tool_use_id", "source", "is_error"])
BLOCK = st.builds(lambda kind, rest: {"type": kind, **rest}, KIND, st.dictionaries(NAMES, JSON, max_size=4))
CONTENT = st.text(max_size=12) | st.lists(BLOCK, max_size=3) | JSON
MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]) | JSON, "content": CONTENT})
BODY = st.fixed_dictionaries(
    {},
    optional={
        "model": st.just("demo") | JSON,
        "max_tokens": st.integers(0, 2) | JSON,
        "messages": st.lists(MESSAGE, max_size=3) | JSON,
        "system": CONTENT,
        "stream": st.booleans() | JSON,
        "stop_sequences": st.lists(st.text(max_size=4), max_size=2) | JSON,
        "temperature": JSON,
        "top_k": JSON,
        "tools": JSON,
        "tool_choice": JSON,
        "thinking": st.sampled_from([{"type": "adaptive"}, {"type": "disabled"}]) | JSON,
        "metadata": JSON,
    },
)


@settings(max_examples=25)
@given(BODY, st.sampled_from(["/v1/messages", "/v1/messages/count_tokens"]))
def test_no_body_makes_the_server_fail(server: HttpServer, body: dict[str, Any], path: str) -> None:
    answer = httpx.post(f"{server.url}{path}", json=body, timeout=60)
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.headers["content-type"].startswith("text/event-stream"):
        assert '"api_error"' not in answer.text
    elif answer.status_code != 200:
        assert answer.json()["type"] == "error" and answer.json()["error"]["message"]
