"""Which requests come behind chats."""

from __future__ import annotations

from typing import Any

import pytest

from moeinf.server.ask import Ask, Tools
from moeinf.server.openai.requests import ChatRequest, background_asked
from moeinf.server.prompt.background_work import in_background

TITLE = "You are a title generator. You output ONLY a thread title. Nothing else."


def chat(*texts: str, **more: Any) -> Ask:
    roles = ("system", "user")[-len(texts) :]
    return Ask("a", [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)], **more)


@pytest.mark.parametrize(
    ("header", "wanted"),
    [("u=7", True), ("i, u=7", True), ("u=7, i", True), ("u=6", False), ("u=77", False), ("", False), ("i", False)],
)
def test_the_urgency_of_http(header: str, wanted: bool) -> None:
    assert in_background(chat("Hello"), {"priority": header}) is wanted


def test_a_header_counts_more_than_what_is_guessed() -> None:
    assert not in_background(chat(TITLE, "Hello"), {"priority": "u=3"})
    assert in_background(chat(TITLE, "Hello"), {})


@pytest.mark.parametrize(
    ("ask", "wanted"),
    [
        (chat("Analyze if this message indicates a new conversation topic. If it does, extract", "Hello"), True),
        (chat("### Task:\nGenerate a concise, 3-5 word title with an emoji"), True),
        (Ask("a", "### Task:\nGenerate 1-3 broad tags"), True),
        (chat("Please write a 5-10 word title for the following conversation: hi"), True),
        (chat("You are a coding agent.", "Write a title generator"), False),
        (chat(TITLE, "Hello", tools=Tools([{"type": "function"}])), False),
        (Ask("a", "### Task:\nas it is", raw=True), False),
        (Ask("a"), False),
    ],
)
def test_titles_and_tags_beside_a_chat_are_known_by_their_prompts(ask: Ask, wanted: bool) -> None:
    assert in_background(ask, {}) is wanted


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"service_tier": "flex"}, True),
        ({"priority": 1}, True),
        ({"service_tier": "flex", "priority": 0}, True),
        ({"priority": 0}, False),
        ({"priority": -3}, False),
        ({"service_tier": "priority"}, False),
        ({"service_tier": "auto"}, None),
        ({}, None),
    ],
)
def test_openais_and_vllms_fields(fields: dict[str, Any], wanted: bool | None) -> None:
    assert background_asked(ChatRequest(model="a", messages=[], **fields)) is wanted
