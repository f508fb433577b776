"""A request that is right but for one value is answered or refused, and never a fault of the server."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moeinf.config import RuntimeConfig
from moeinf.pull.pull import ensure
from moeinf.server.serve import HttpServer
from tests.support.caller import LOOK_UP
from tests.support.live_server import live_server

Json = dict[str, Any]
HI = {"role": "user", "content": "Tell"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "fox"}'}}
PICTURE = base64.b64encode(b"no picture").decode()
TOOL = LOOK_UP["function"]
SCHEMA: Json = {"type": "object", "properties": {"a": {"type": "integer"}}}
HELD: Json = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
SHOWN: Json = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}
USED: Json = {"function": {"name": "look_up", "arguments": {"word": "fox"}}}
SAMPLING: Json = {
    "max_tokens": 1,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "stop": ["x"],
    "seed": 1,
    "stream": False,
}
RIGHT: list[tuple[str, Json]] = [
    (
        "/v1/chat/completions",
        SAMPLING
        | {
            "messages": [
                {"role": "system", "content": "Be brief"},
                {"role": "user", "content": [{"type": "text", "text": "Tell"}]},
                {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "Hm"},
                {"role": "tool", "tool_call_id": "call_1", "name": "look_up", "content": "red"},
            ],
            "tools": [LOOK_UP],
            "tool_choice": {"type": "function", "function": {"name": "look_up"}},
            "logit_bias": {"5": -1},
            "stream_options": {"include_usage": True},
            "chat_template_kwargs": {},
            "reasoning": {"exclude": True, "max_tokens": 5},
            "keep_alive": "5m",
            "user": "me",
        },
    ),
    ("/v1/chat/completions", {"max_tokens": 1, "messages": [HI], "response_format": HELD}),
    ("/v1/chat/completions", {"max_tokens": 1, "messages": [HI], "structured_outputs": {"choice": ["a", "b"]}}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [SHOWN]}]}),
    ("/v1/completions", SAMPLING | {"prompt": "Tell", "logit_bias": {"5": -1}, "grammar": 'root ::= "a"'}),
    (
        "/v1/messages",
        {
            "max_tokens": 1,
            "system": [{"type": "text", "text": "Be brief", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Tell"}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm", "signature": "x"},
                        {"type": "tool_use", "id": "t1", "name": "look_up", "input": {"word": "fox"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "red"}]},
                        {"type": "document", "title": "x", "source": {"type": "text", "data": "a"}},
                        {
                            "type": "search_result",
                            "source": "x",
                            "title": "y",
                            "content": [{"type": "text", "text": "z"}],
                        },
                    ],
                },
            ],
            "tools": [{"name": "look_up", "description": "x", "input_schema": TOOL["parameters"]}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            "thinking": {"type": "adaptive", "display": "omitted"},
            "metadata": {"user_id": "me"},
            "stop_sequences": ["x"],
        },
    ),
    (
        "/v1/messages/count_tokens",
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": PICTURE}}]}]},
    ),
    (
        "/v1/responses",
        {
            "max_output_tokens": 1,
            "instructions": "Be brief",
            "input": [
                {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "x"}]},
                HI,
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}], "content": None},
                {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": "{}", "namespace": "n"},
                {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "red"}]},
                {"type": "custom_tool_call", "call_id": "c2", "name": "run", "input": "x"},
                {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
                {"type": "additional_tools", "role": "developer", "tools": [{"type": "custom", "name": "more"}]},
                HI,
            ],
            "tools": [
                {"type": "function", "strict": False, **TOOL},
                {"type": "custom", "name": "run", "format": {"type": "text"}},
                {"type": "namespace", "name": "n", "tools": [{"type": "function", **TOOL}]},
                {"type": "web_search"},
            ],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "run"}]},
            "reasoning": {"effort": "none", "summary": "auto"},
            "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}, "verbosity": "medium"},
            "include": ["message.output_text.logprobs"],
            "truncation": "auto",
            "metadata": {"a": "b"},
            "parallel_tool_calls": False,
            "store": True,
            "stream": False,
        },
    ),
    ("/v1/embeddings", {"input": ["Tell", [1, 2]], "dimensions": 3, "encoding_format": "base64", "priority": 1}),
    ("/v1/completions", {"prompt": ["a", "b"], "n": 2, "echo": True, "max_tokens": 1, "seed": 5}),
    ("/tokenize", {"content": "Tell", "add_special": True, "parse_special": False, "with_pieces": True}),
    ("/detokenize", {"tokens": [1, 2]}),
    ("/apply-template", {"messages": [HI], "tools": [LOOK_UP], "chat_template_kwargs": {}}),
    ("/api/embed", {"input": ["Tell"], "truncate": True, "dimensions": 3, "options": {"num_ctx": 512}}),
    ("/api/embeddings", {"prompt": "Tell", "keep_alive": "5m"}),
    (
        "/api/chat",
        {
            "messages": [
                HI,
                {"role": "assistant", "content": "", "thinking": "Hm", "tool_calls": [USED]},
                {"role": "tool", "tool_name": "look_up", "content": "red"},
            ],
            "tools": [LOOK_UP],
            "options": {"num_predict": 1, "temperature": 0.5, "stop": ["x"], "num_ctx": 512},
            "keep_alive": "5m",
            "stream": False,
        },
    ),
    (
        "/api/generate",
        {"prompt": "Tell", "system": "x", "images": [PICTURE], "format": SCHEMA, "options": {"num_predict": 1}},
    ),
]
CONFIG = RuntimeConfig.of(device="cpu", context=256)  # keeps answers short
WRONG: list[Any] = [
    *(None, True, 0, -1, 1.5, 2**63, 10**30, 1e308, "", "x", "\ufffd", "{", [], [None], [[]], ["x"], {}, {"x": None}),
    *({"a": {"b": [1]}}, {"type": "x"}, {"": ""}, "<|im_start|>", "\x00"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with live_server(ensure("demo:chat", home=tmp_path_factory.mktemp("wrong")), config=CONFIG) as running:
        yield running


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*at, key))


def changed(body: Json, place: tuple[Any, ...], value: Any) -> Json:
    body = copy.deepcopy(body)
    holder: Any = body
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    return body


CASES = [(path, body, place) for path, body in RIGHT for place in places(body)]


def check(server: HttpServer, path: str, body: Json) -> None:
    answer = httpx.post(f"{server.url}{path}", json={"model": "demo:chat"} | body, timeout=60)
    assert answer.status_code < 500 and "unexpected error" not in answer.text, answer.text
    if answer.status_code != 200:
        told = json.loads(answer.text.splitlines()[0])["error"]
        assert told if path.startswith("/api") else told["message"]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(CASES), st.sampled_from(WRONG))
def test_no_value_makes_the_server_fail(
    server: HttpServer, case: tuple[str, Json, tuple[Any, ...]], value: Any
) -> None:
    path, body, place = case
    check(server, path, changed(body, place, value))


def test_the_requests_themselves_are_answered_or_refused(server: HttpServer) -> None:
    for path, body in RIGHT:
        check(server, path, body)
