"""Chat templates as their makers published them make of a chat what transformers makes of it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from moeinf.text.tokenizer import Tokenizer
from tests.support.text_models import write_text_model
from tests.support.true_configs import PUBLISHED

TEMPLATES = sorted(path.parent.name for path in PUBLISHED.glob("*/chat_template.jinja"))
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello 日本"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Weather in Paris?"},
]


def of_transformers(template: str, tools: Any) -> str:
    made: Any = render_jinja_template(  # its annotation names another type
        conversations=[CHAT],
        tools=tools,
        chat_template=template,
        add_generation_prompt=True,
        bos_token="<s>",
        eos_token="</s>",
    )
    (text,), _ = made
    return str(text)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_published_template_makes_of_a_chat_what_transformers_does(name: str, tmp_path: Path) -> None:
    template = (PUBLISHED / name / "chat_template.jinja").read_text(encoding="utf-8")
    before = datetime.now().date()
    writes_tools = of_transformers(template, [TOOL]) != of_transformers(template, None)
    kinds = [None, [TOOL]] if writes_tools else [None]  # for others moeinf writes the tools
    with Tokenizer(write_text_model(tmp_path, template)) as tokenizer:
        for tools in kinds:
            text, notes = tokenizer.render(CHAT, {} if tools is None else {"tools": tools})
            if datetime.now().date() == before:  # some write the day
                assert text == of_transformers(template, tools) and not notes
            assert text.index("Be brief.") < text.index("日本") < text.index("Hi.") < text.index("Paris")
            assert tools is None or "get_weather" in text
