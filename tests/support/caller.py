"""A model that calls a tool where it is given any, after a thought, and tells what it found once it has a result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.speaker import write_speaker

LOOK_UP: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
ARGUMENTS = {"word": "a fox"}
SAYS: Mapping[str, str] = {
    "assistant": "Hello",
    "Hello": "there",
    "there": "<|im_end|>",
    "tools": "<think>",
    "<think>": "Hm.",
    "Hm.": "</think>",
    "</think>": "Looking.",
    "Looking.": "<tool_call>",
    "<tool_call>": '{"name":',
    '{"name":': '"look_up",',
    '"look_up",': '"arguments":',
    '"arguments":': '{"word":',
    '{"word":': '"a',
    '"a': 'fox"}}',
    'fox"}}': "</tool_call>",
    "</tool_call>": "<|im_end|>",
    "found": "It",
    "It": "is",
    "is": "red.",
    "red.": "<|im_end|>",
}
TEMPLATE = (
    "{% for m in messages %}<|im_start|> {{ m.role }} {{ m.content }}"
    "{% for call in m.tool_calls or [] %} <tool_call> {{ call.function | tojson }} </tool_call>{% endfor %}"
    " <|im_end|> {% endfor %}<|im_start|> assistant"
    "{% if messages[-1].role == 'tool' %} found{% elif tools %} tools{% endif %}"
    "{# it thinks between <think> and </think> #}"
)


def write_caller(folder: Path) -> Path:
    return write_speaker(folder, SAYS, TEMPLATE, ("<think>", "</think>", "<tool_call>", "</tool_call>"))
