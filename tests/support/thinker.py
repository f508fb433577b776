"""A model that says the same words whatever it is asked, after the thoughts that its template lets it have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support.speaker import write_speaker

SAYS: Mapping[str, str] = {
    "assistant": "<think>",
    "<think>": "Let",
    "Let": "me",
    "me": "see",
    "see": "</think>",
    "</think>": "Hello",
    "Hello": "there",
    "there": "<|im_end|>",
}
TEMPLATE = (
    "{% for m in messages %}<|im_start|> {{ m.role }} {{ m.content }} <|im_end|> {% endfor %}"
    "<|im_start|> assistant"
    "{% if enable_thinking is defined and not enable_thinking %} <think> </think>{% endif %}"
)


def write_thinker(folder: Path) -> Path:
    return write_speaker(folder, SAYS, TEMPLATE, ("<think>", "</think>"))
