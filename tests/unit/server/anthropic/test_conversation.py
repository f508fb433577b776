"""Anthropic's messages become those that chat templates read."""

from __future__ import annotations

from typing import Any

import pytest

from moeinf.server.anthropic.conversation import plain_messages
from moeinf.server.http_errors import Refusal

USER = {"role": "user", "content": "hi"}
CACHED = {"cache_control": {"type": "ephemeral"}}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def test_strings_and_lists_of_text_say_the_same() -> None:
    plain = [{"role": "system", "content": "Be brief."}, USER]
    assert plain_messages("Be brief.", [USER]) == plain
    assert plain_messages([text("Be brief.", **CACHED)], [{"role": "user", "content": [text("hi", **CACHED)]}]) == plain


def test_the_billing_block_is_no_part_of_the_prompt() -> None:
    billing = text("x-anthropic-billing-header: cc_version=2.1; cch=abc;")
    parts = [text("You are an agent."), text("Be brief."), text("<total_tokens>9 tokens left</total_tokens>")]
    expected = {"role": "system", "content": "You are an agent.\nBe brief."}
    assert plain_messages([billing, *parts], [USER]) == [expected, USER]
    assert plain_messages([billing], [USER]) == plain_messages([], [USER]) == [USER]


def test_calls_and_results_of_tools() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "sky"}}
    answer = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I must look.", "signature": "x"},
            {"type": "redacted_thinking", "data": "..."},
            text("Let me see."),
            call,
        ],
    }
    results = [
        {"type": "tool_result", "tool_use_id": "t1", "content": [text("It is"), text("blue.")], **CACHED},
        {"type": "tool_result", "tool_use_id": "t2", "content": "no such tool", "is_error": True},
        {"type": "tool_result", "tool_use_id": "t3"},
        text("Well?"),
    ]
    assert plain_messages(None, [USER, answer, {"role": "user", "content": results}]) == [
        USER,
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "I must look.",
            "thinking": "I must look.",
            "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "look", "arguments": {"at": "sky"}}}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "It is\nblue."},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: no such tool"},
        {"role": "tool", "tool_call_id": "t3", "content": ""},
        {"role": "user", "content": "Well?"},
    ]


def test_documents_and_search_results_that_hold_text() -> None:
    plain = {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "abc"}}
    listed = {"type": "document", "source": {"type": "content", "content": [text("d"), text("e")]}}
    found = {"type": "search_result", "source": "http://a", "title": "A", "content": [text("f")]}
    messages = plain_messages(None, [{"role": "user", "content": [plain, listed, found]}])
    assert messages == [{"role": "user", "content": "T\nabc\nd\ne\nA\nhttp://a\nf"}]


def test_a_late_system_message_stays_where_it_is() -> None:
    late = {"role": "system", "content": [text("Now in French.")]}
    assert plain_messages(None, [USER, late, USER])[1] == {"role": "system", "content": "Now in French."}


RESULT = {"type": "tool_result", "tool_use_id": "t"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
SCAN = {"type": "document", "source": {"type": "content", "content": [IMAGE]}}


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ([], "messages is empty"),
        ([{"role": "robot", "content": "x"}], "'robot'"),
        ([{"content": "x"}], "None"),
        ([{"role": "user"}], "content must be"),
        ([{"role": "user", "content": 5}], "content must be"),
        ([{"role": "user", "content": ["x"]}], "content must be"),
        ([{"role": "user", "content": [{"text": "x"}]}], "no type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "must have the text"),
        ([USER, {"role": "user", "content": [IMAGE]}], r"messages\[1\].*an image must be"),
        ([{"role": "user", "content": [RESULT | {"content": [IMAGE]}]}], "an image must be"),
        ([{"role": "user", "content": [{"type": "document", "source": {"type": "base64"}}]}], "must hold text"),
        ([{"role": "user", "content": [SCAN]}], "something else"),
        ([{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}], "tool_use_id"),
        ([{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f"}]}, USER], "input"),
        ([{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "input": {}}]}, USER], "name"),
    ],
)  # fmt: skip
def test_what_no_model_here_reads_is_refused(messages: list[dict[str, Any]], named: str) -> None:
    with pytest.raises(Refusal, match=named) as refused:
        plain_messages(None, messages)
    assert refused.value.status == 400
