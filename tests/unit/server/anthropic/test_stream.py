"""The events of a message come in the order that Anthropic publishes."""

from __future__ import annotations

import json
import re
from itertools import count
from typing import Any

import pytest

from moeinf.engine.completion import Completion, GenerationStats
from moeinf.errors import ContextLengthError
from moeinf.server.anthropic.head import Head
from moeinf.server.anthropic.stream import MessageWriter
from moeinf.server.ask import Call, Ended, Event, Failed, Loading, Reading, Text
from moeinf.server.http_errors import BusyError
from moeinf.text.text_stream import CallPart

STATS = GenerationStats(prompt_tokens=9, cached_tokens=4)


def told(*events: Event | None, **options: Any) -> list[dict[str, Any]]:
    """What a client is sent, each event with the type that its `event:` line and its data agree on."""
    seconds = count(0, 5)
    stream = MessageWriter(Head("m"), "req_1", **({"clock": lambda: next(seconds)} | options))
    sent = []
    for event in events:
        for piece in stream.encode(event):
            match = re.fullmatch(r"event: (\w+)\ndata: (.*)\n\n", piece.decode())
            assert match is not None
            sent.append(json.loads(match[2]))
            assert sent[-1]["type"] == match[1]
    return sent


def kinds(sent: list[dict[str, Any]]) -> list[str]:
    return [f"{each['type']} {each['index']}" if "index" in each else each["type"] for each in sent]


def ended(text: str = "", **members: Any) -> Ended:
    given: dict[str, Any] = {"finish_reason": "stop", "stats": STATS, "token_ids": [1, 2, 3]} | members
    return Ended(Completion(text, **given))


def test_thoughts_and_text() -> None:
    sent = told(
        Loading(1, 2), None, Reading(5, 9), Reading(9, 9), Text("Let", thought=True), Text(" me", thought=True),
        None, Text("Hel"), Text("lo"), ended("Hello"),
    )  # fmt: skip
    assert kinds(sent) == [
        "ping",
        "ping",
        "message_start",
        "ping",
        "content_block_start 0",
        "content_block_delta 0",
        "content_block_delta 0",
        "ping",
        "content_block_delta 0",
        "content_block_stop 0",
        "content_block_start 1",
        "content_block_delta 1",
        "content_block_delta 1",
        "content_block_stop 1",
        "message_delta",
        "message_stop",
    ]
    message = sent[2]["message"]
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 9,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        },
    }
    assert sent[4]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert sent[5]["delta"] == {"type": "thinking_delta", "thinking": "Let"}
    assert sent[8]["delta"]["type"] == "signature_delta" and sent[8]["delta"]["signature"]
    assert sent[10]["content_block"] == {"type": "text", "text": ""}
    assert sent[11]["delta"] == {"type": "text_delta", "text": "Hel"}
    assert sent[14]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert sent[14]["usage"] == {
        "input_tokens": 5,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 3,
    }
    assert sent[14]["moeinf"]["cached_tokens"] == 4


def test_progress_is_no_more_than_a_ping_a_second() -> None:
    times = iter([0.0, 0.0, 0.4, 0.9, 1.1, 1.1, 1.2])
    sent = told(*(Loading(n, 9) for n in range(4)), None, clock=lambda: next(times))
    assert kinds(sent) == ["ping"] * 3


def test_thoughts_that_are_not_to_be_shown() -> None:
    sent = told(Reading(9, 9), Text("Let", thought=True), Text("Hi"), ended("Hi"), thoughts_shown=False)
    deltas = [each["delta"]["type"] for each in sent if each["type"] == "content_block_delta"]
    assert deltas == ["signature_delta", "text_delta"]


def test_calls_of_tools() -> None:
    parts = [CallPart(0, "look", ""), CallPart(0, None, '{"at":'), CallPart(0, None, '"sky"}'), CallPart(1, "go", "{}")]
    calls = [Call(part.index, part.name, part.arguments) for part in parts]
    sent = told(Reading(9, 9), Text("Well"), *calls, ended("Well", call_parts=parts))
    assert kinds(sent[1:]) == [
        "content_block_start 0",
        "content_block_delta 0",
        "content_block_stop 0",
        "content_block_start 1",
        *["content_block_delta 1"] * 3,
        "content_block_stop 1",
        "content_block_start 2",
        "content_block_delta 2",
        "content_block_stop 2",
        "message_delta",
        "message_stop",
    ]
    block = sent[4]["content_block"]
    assert block.pop("id").startswith("toolu_") and block == {"type": "tool_use", "name": "look", "input": {}}
    assert sent[6]["delta"] == {"type": "input_json_delta", "partial_json": '{"at":'}
    assert sent[9]["content_block"]["name"] == "go"
    assert sent[-2]["delta"]["stop_reason"] == "tool_use"


def test_an_answer_of_nothing() -> None:
    assert kinds(told(ended(token_ids=[]))) == ["message_start", "message_delta", "message_stop"]


@pytest.mark.parametrize(
    ("members", "reason", "sequence"),
    [
        ({}, "end_turn", None),
        ({"stop": "END"}, "stop_sequence", "END"),
        ({"finish_reason": "length", "cut_by": "num_predict"}, "max_tokens", None),
        ({"finish_reason": "length", "cut_by": "context"}, "model_context_window_exceeded", None),
    ],
)
def test_stop_reasons(members: dict[str, Any], reason: str, sequence: str | None) -> None:
    delta = told(Text("Hi"), ended("Hi", **members))[-2]["delta"]
    assert delta == {"stop_reason": reason, "stop_sequence": sequence}


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            ContextLengthError("9 tokens", 9, 8, "shorten it"),
            "invalid_request_error",
            "prompt is too long: 9 tokens > 8 maximum: shorten it",
        ),
        (BusyError("busy"), "overloaded_error", "busy"),
        (ValueError("secret"), "api_error", "unexpected error; the server's log has more"),
    ],
)
def test_an_error_is_an_event(error: Exception, kind: str, message: str) -> None:
    assert told(Text("Hi"), Failed(error))[-1] == {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": "req_1",
    }
