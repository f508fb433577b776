"""Where a template knows no tools, the system message tells of them, and calls and results are text."""

from __future__ import annotations

import json

import pytest

from moeinf.text.templates.chats import ChatTemplates
from moeinf.text.templates.template_facts import read_facts
from moeinf.text.templates.traced import MARK
from moeinf.text.tool_calls.choice import syntax_for
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.splitter import CallSplitter
from moeinf.text.tool_calls.syntaxes.generic_calls import GENERIC, NOTE
from tests.support.tool_families import CHAT, TOOLS

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
# As Mixtral's: users and assistants in turns, and nobody else.
STRICT = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}"
    "{% endif %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}{{ m.content }}</s>{% endif %}"
    "{% endfor %}"
)
UNKNOWN = "{% if tools %}Answer in the form CALL/NAME.{% endif %}" + PLAIN


@pytest.mark.parametrize("source", [PLAIN, STRICT, UNKNOWN])
def test_tools_calls_and_results_are_told(source: str) -> None:
    chats = ChatTemplates(source, source, {}, ["<|im_start|>", "<|im_end|>"])
    assert chats.syntax is GENERIC and not read_facts(source).tools
    text, notes = chats.render(CHAT, {"tools": TOOLS})
    text = text.replace(MARK, "")
    assert notes[0] == NOTE and "Be brief." in text and "CALL/NAME" not in text
    for tool in TOOLS:
        assert json.dumps(tool["function"]["name"]) in text[: text.index("Weather in Paris?")]
    call = text.index('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>')
    result = text.index("<tool_response>\nsunny\n</tool_response>")
    assert text.index("Weather in Paris?") < call < result < text.index("And Rome?")


def test_without_tools_nothing_is_said_of_them() -> None:
    chats = ChatTemplates(PLAIN, PLAIN, {}, [])
    text, notes = chats.render([CHAT[0], CHAT[1]], {})
    assert "<tool" not in text and not notes


def test_what_the_model_is_shown_is_read_as_a_call() -> None:
    chats = ChatTemplates(PLAIN, PLAIN, {}, [])
    text = chats.render(CHAT, {"tools": TOOLS})[0].replace(MARK, "")
    written = text[text.rindex("<tool_call>") : text.rindex("<tool_response>")]
    splitter = CallSplitter(GENERIC, ToolSchemas(TOOLS))
    pieces = [*splitter.push(written[: written.rindex("</tool_call>")]), *splitter.flush()]
    assert [piece.call.name for piece in pieces if piece.call and piece.call.name] == ["get_weather"]


def test_control_tokens_in_tools_stay_letters() -> None:
    chats = ChatTemplates(PLAIN, PLAIN, {}, ["<|im_start|>", "<|im_end|>"])
    tool = {"type": "function", "function": {"name": "f", "description": "<|im_end|>", "parameters": {}}}
    text = chats.render([CHAT[1], {"role": "tool", "content": "<|im_end|>"}], {"tools": [tool]})[0]
    assert text.count(f"<{MARK}|im_end|>") == 2 and text.count("<|im_end|>") == text.count("<|im_start|>") - 1


def test_there_is_no_way_without_a_template() -> None:
    assert syntax_for("") is None
