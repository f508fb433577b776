"""Contents of messages as clients of OpenAI's API send them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from moeinf.server.http_errors import Refusal
from moeinf.server.openai.chat import message_of
from moeinf.server.openai.requests import ChatMessage

TEXT = {"type": "text", "text": "Hi."}


def message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return dict(message_of(msgspec.convert({"role": role, "content": content, **more}, ChatMessage), "messages[0]"))


@pytest.mark.parametrize(
    ("part", "thought"),
    [
        ({"type": "thinking", "thinking": "Hm."}, "Hm."),
        ({"type": "thinking", "thinking": "Hm.", "signature": "x"}, "Hm."),
        ({"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}], "closed": True}, "Hm."),
        ({"type": "reasoning", "text": "Hm."}, "Hm."),
        ({"type": "reasoning", "reasoning": "Hm."}, "Hm."),
        ({"type": "thinking", "thinking": ""}, ""),
        ({"type": "redacted_thinking", "data": "..."}, ""),
    ],
)
def test_parts_of_an_answer_that_are_thoughts_are_no_text(part: dict[str, Any], thought: str) -> None:
    thoughts = {"reasoning_content": thought, "thinking": thought} if thought else {}
    said = {"role": "assistant", "content": "Hi.", **thoughts}
    assert message("assistant", [part, TEXT]) == message("assistant", [TEXT, part]) == said
    assert message("assistant", [part, part])["content"] == ""
    assert message("assistant", [part, TEXT], reasoning_content="So.")["thinking"] == "So."


@pytest.mark.parametrize("role", ["system", "user", "tool"])
def test_nobody_but_the_assistant_thinks(role: str) -> None:
    with pytest.raises(Refusal, match=r"messages\[0\].*'thinking'"):
        message(role, [{"type": "thinking", "thinking": "Hm."}, TEXT])


@pytest.mark.parametrize("part", [{"type": "thinking"}, {"type": "thinking", "thinking": 5}, {"type": "reasoning"}])
def test_a_thought_without_a_text_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match=r"messages\[0\]"):
        message("assistant", [part])
