"""Calls are told apart where a model forgets what closes them, and so are the words that it says around them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from moeinf.text.thoughts import Tags, tags_of
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.splitter import CallSplitter
from moeinf.text.tool_calls.syntax import Syntax
from moeinf.text.tool_calls.syntaxes.deepseek_calls import DEEPSEEK
from moeinf.text.tool_calls.syntaxes.glm_calls import GLM
from moeinf.text.tool_calls.syntaxes.granite_calls import GRANITE
from moeinf.text.tool_calls.syntaxes.hermes import HERMES
from moeinf.text.tool_calls.syntaxes.kimi import KIMI
from moeinf.text.tool_calls.syntaxes.mistral_calls import MISTRAL
from moeinf.text.tool_calls.syntaxes.qwen_xml import QWEN_XML
from tests.support.shown_text import apart
from tests.support.tool_families import TOOLS

Calls = list[tuple[str, str]]
ROME, OSLO = ("get_weather", '{"city": "Rome"}'), ("get_weather", '{"city": "Oslo"}')
EMPTY = ("note", "{}")


def xml(city: str, *, lines: bool) -> str:
    """A call of Qwen3-Coder's form without its last mark."""
    value = f"\n{city}\n" if lines else city
    return f"<tool_call>\n<function=get_weather>\n<parameter=city>{value}</parameter>\n</function>"


def glm(city: str) -> str:
    return f"<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>{city}</arg_value>\n"


def json_call(city: str) -> str:
    return f'{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}'


ONE = {
    "hermes": (HERMES, f"<tool_call>{json_call('Rome')}</tool_call>"),
    "qwen3-coder": (QWEN_XML, xml("Rome", lines=True) + "</tool_call>"),
    "glm": (GLM, glm("Rome") + "</tool_call>"),
    "granite": (GRANITE, f"<|tool_call|>[{json_call('Rome')}]"),
    "mistral": (MISTRAL, '[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}'),
    "deepseek": (
        DEEPSEEK,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        '{"city": "Rome"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    ),
    "kimi": (
        KIMI,
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Rome"}<|tool_call_end|><|tool_calls_section_end|>',
    ),
}


def split(syntax: Syntax | None, parts: Sequence[str], tags: Tags | None = None) -> tuple[tuple[str, str], Calls]:
    """The thought and the text, and the calls with the text of their arguments."""
    splitter = CallSplitter(syntax, ToolSchemas(TOOLS), tags=tags)
    pieces = [*(piece for part in parts for piece in splitter.push(part)), *splitter.flush()]
    calls: dict[int, tuple[str, str]] = {}
    for part in (piece.call for piece in pieces if piece.call):
        name, arguments = calls.get(part.index, (part.name or "", ""))
        calls[part.index] = (name, arguments + part.arguments)
    return apart([piece for piece in pieces if piece.call is None]), [calls[index] for index in sorted(calls)]


@pytest.mark.parametrize(
    ("syntax", "answer", "calls"),
    [
        (QWEN_XML, xml("Rome", lines=True) + "\n" + xml("Oslo", lines=True) + "\n</tool_call>", [ROME, OSLO]),
        (QWEN_XML, xml("Rome", lines=False) + "\n" + xml("Oslo", lines=False) + "\n</tool_call>", [ROME, OSLO]),
        (QWEN_XML, "<tool_call><function=note></function>\n" + xml("Oslo", lines=True) + "</tool_call>", [EMPTY, OSLO]),
        (QWEN_XML, "\n".join(xml(city, lines=True) for city in ("Rome", "Oslo", "Rome")), [ROME, OSLO, ROME]),
        (GLM, glm("Rome") + glm("Oslo") + "</tool_call>", [ROME, OSLO]),
        (GLM, glm("Rome") + glm("Oslo") + glm("Rome"), [ROME, OSLO, ROME]),
        (GLM, "<tool_call>note\n" + glm("Oslo") + "</tool_call>", [EMPTY, OSLO]),
        (MISTRAL, "[TOOL_CALLS]note", [EMPTY]),
        (MISTRAL, "[TOOL_CALLS]note[TOOL_CALLS]note{}", [EMPTY, EMPTY]),
        (MISTRAL, f"[TOOL_CALLS] {json_call('Rome')}, {json_call('Oslo')}", [ROME, OSLO]),
        (GRANITE, f"<|tool_call|>{json_call('Rome')},\n{json_call('Oslo')}", [ROME, OSLO]),
        (HERMES, f"<tool_call>{json_call('Rome')}, {json_call('Oslo')}</tool_call>", [ROME, OSLO]),
    ],
)
def test_a_call_ends_where_another_begins_though_its_marks_are_forgotten(
    syntax: Syntax, answer: str, calls: Calls
) -> None:
    assert split(syntax, [answer]) == (("", ""), calls) == split(syntax, list(answer))


@pytest.mark.parametrize("answer", ["[TOOL_CALLS]note it", "[TOOL_CALLS]unheard"])
def test_a_name_alone_calls_a_given_tool_only_and_only_where_nothing_follows(answer: str) -> None:
    assert split(MISTRAL, [answer]) == (("", answer), []) == split(MISTRAL, list(answer))


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize(
    ("before", "behind", "text"),
    [
        ("First.", " Then.", "First. Then."),
        ("First. ", "Then.", "First. Then."),
        ("First.\n\n", "\nThen.\n", "First.\n\nThen.\n"),
        ("First.", "Then.", "First.Then."),
        ("", "\n Then.", "Then."),
        ("First. ", "\n\n", "First."),
    ],
)
def test_words_before_and_behind_a_call_do_not_run_together(name: str, before: str, behind: str, text: str) -> None:
    syntax, call = ONE[name]
    answer = before + call + behind
    assert split(syntax, [answer]) == (("", text), [ROME]) == split(syntax, list(answer))


def test_words_around_several_calls_keep_one_space() -> None:
    syntax, call = ONE["hermes"]
    for answer, text in (
        (f"a{call}\n{call}b", "a\nb"),
        (f"a {call}\n{call}</tool_call>\n\nb", "a b"),
        (f"a{call} <tool_call>none", "a <tool_call>none"),
    ):
        assert split(syntax, [answer])[0] == ("", text) == split(syntax, list(answer))[0], answer


def test_the_word_behind_a_tag_of_gemma_is_no_part_of_a_later_thought_either() -> None:
    tags = tags_of("<channel|>")
    for thought in ("", "more"):
        answer = f"Yes.<|channel>thought\n{thought}<channel|>"
        assert split(None, [answer], tags)[0] == (thought, "Yes.") == split(None, list(answer), tags)[0]
