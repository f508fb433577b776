"""Calls are told from text without losing any, whatever a model writes and however it arrives."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from moeinf.text.text_stream import TOKEN_MARK
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
from tests.support.tool_families import BY_NAME, CALLS, TOOLS

# The family whose answer in the corpus has no thought in front of its text.
FAMILIES = {
    "qwen3": HERMES,
    "qwen3-coder": QWEN_XML,
    "glm": GLM,
    "mistral": MISTRAL,
    "deepseek-r1": DEEPSEEK,
    "deepseek-v3": DEEPSEEK,
    "kimi": KIMI,
    "granite": GRANITE,
}
SYNTAXES = {name: syntax for name, syntax in FAMILIES.items() if name != "deepseek-r1"}


KB, KC, KA = "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"
KE, KF = "<|tool_call_end|>", "<|tool_calls_section_end|>"
DB, DC, DS, DE, DF = (
    DEEPSEEK.opens[0],
    DEEPSEEK.opens[1],
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)


def split(
    syntax: Syntax, parts: Sequence[str], tokens: Sequence[str] = (), *, cut: bool = False
) -> tuple[str, list[tuple[str, str]]]:
    """The text, and the calls with the text of their arguments."""
    splitter = CallSplitter(syntax, ToolSchemas(TOOLS), frozenset(tokens))
    pieces = [*(piece for part in parts for piece in splitter.push(part)), *splitter.flush(cut=cut)]
    names = {piece.call.index: piece.call.name for piece in pieces if piece.call and piece.call.name is not None}
    arguments = dict.fromkeys(names, "")
    for piece in pieces:
        if piece.call:
            arguments[piece.call.index] += piece.call.arguments
    return "".join(piece.text for piece in pieces), [(str(names[at]), arguments[at]) for at in names]


def cut(text: str, places: Sequence[int]) -> list[str]:
    at = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(at)]


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=40, deadline=None)
@given(places=st.lists(st.integers(0, 1000), max_size=40))
def test_letters_are_read_wherever_they_are_cut(name: str, places: list[int]) -> None:
    answer = BY_NAME[name].answer.split("</think>")[-1].lstrip("\n")
    text, calls = split(FAMILIES[name], cut(answer, places))
    assert (text, [(tool, json.loads(arguments)) for tool, arguments in calls]) == ("Let me see.", CALLS)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("marked", [False, True])
def test_an_answer_that_is_cut_anywhere_leaks_no_markup(name: str, marked: bool) -> None:
    answer, syntax = BY_NAME[name].answer.split("</think>")[-1].lstrip("\n"), FAMILIES[name]
    whole = ["Let me see.", "Let me see.\n"]
    if marked:
        answer = re.sub("|".join(map(re.escape, syntax.marks)), lambda mark: TOKEN_MARK + mark[0], answer)
    for end in range(len(whole[0]), len(answer)):
        text, calls = split(syntax, [answer[:end]], syntax.marks if marked else (), cut=True)
        assert text in whole, answer[:end]
        sure = [(tool, arguments) for tool, arguments in calls if is_object(arguments)]
        assert [(tool, json.loads(arguments)) for tool, arguments in sure] == CALLS[: len(sure)]


def is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("syntax", "answer", "calls"),
    [  # what an answer that was cut off may have gone on with decides
        (
            QWEN_XML,
            "<tool_call>\n<function=note>\n<parameter=text>\nSee:\n" + BY_NAME["qwen3-coder"].answer[12:],
            ["note"],
        ),
        (GLM, "<tool_call>note\n<arg_key>text</arg_key>\n<arg_value>a</arg_value>", ["note"]),
        (GLM, "<tool_call>note", []),
        (QWEN_XML, "<tool_call><function=note></function>", ["note"]),
        (MISTRAL, "[TOOL_CALLS]note[ARGS]", []),
        (DEEPSEEK, f"{DB}{DC}note{DS}", []),
        (HERMES, 'So <tool_call>{"name": "note"', []),
    ],
)
def test_no_call_is_mended_that_was_cut_off(syntax: Syntax, answer: str, calls: list[str]) -> None:
    text, found = split(syntax, [answer], cut=True)
    assert text in ("", "So") and [name for name, _ in found] == calls
    assert not any(is_object(arguments) for _, arguments in found)


EMPTY = re.compile(r"calls?(?:_section_|▁)begin\W+tool(?:_calls_section_|_call_section_|▁calls▁)end")
NOTED = "<function=note>\n<parameter=text>\na\n</parameter>\n</function>\n"
PARTS = st.sampled_from(
    [mark for syntax in SYNTAXES.values() for mark in syntax.marks]
    + ["<function=note>", "<parameter=text>", "</parameter>", "</function>", "note", "function", "\n", " ", "```json\n"]
    + ["{", "}", "[", "]", '"', '"name": "note"', '"arguments": ', '{"text": "x"}', "1", ",", "<", "\\", "\t", "日"]
)


@pytest.mark.parametrize("name", SYNTAXES)
@settings(max_examples=150, deadline=None)
@given(parts=st.lists(PARTS, max_size=14), places=st.lists(st.integers(0, 200), max_size=8))
@example(parts=["<tool_call>", "<tool_call>", "{", '"name": "note"', "}", "</tool_call>"], places=[])
@example(parts=["<|tool_call_section_begin|>", "<|tool_calls_section_end|>"], places=[])
def test_whatever_is_no_call_comes_out_as_it_came(name: str, parts: list[str], places: list[int]) -> None:
    answer = "".join(parts)
    text, calls = split(SYNTAXES[name], [answer])
    assert (text, calls) == split(SYNTAXES[name], cut(answer, places))
    if not calls and not EMPTY.search(answer):
        assert text == answer
    for tool, arguments in calls:
        assert tool in answer
        try:
            assert isinstance(json.loads(arguments), dict)
        except ValueError:  # broken off, so that it cannot be taken for a whole call
            assert arguments.startswith("{") or not arguments


@settings(max_examples=150, deadline=None)
@given(text=st.text(alphabet='<tool_call>[TOOL_CALLS] \n{}"abc', max_size=60), places=st.lists(st.integers(0, 60)))
def test_text_without_a_call_is_untouched(text: str, places: list[int]) -> None:
    for syntax in SYNTAXES.values():
        if not any(mark in text for mark in syntax.opens):
            assert split(syntax, cut(text, places)) == (text, [])


@pytest.mark.parametrize(
    ("syntax", "answer", "text", "calls"),
    [
        (
            HERMES,
            '<tool_call>{"arguments": {"text": "a"}, "name": "note"}</tool_call>',
            "",
            [("note", '{"text": "a"}')],
        ),
        (HERMES, '<tool_call>{"name": "note"}</tool_call>', "", [("note", "{}")]),
        (HERMES, '<tool_call>{"name": "note", "arguments": null}', "", [("note", "{}")]),
        (HERMES, '<tool_call>{"name": "note", "arguments": "{\\"text\\": 1}"}', "", [("note", '{"text": 1}')]),
        (HERMES, '<tool_call>{"name": "note", "parameters": {}}</tool_call> done', "done", [("note", "{}")]),
        (HERMES, '<tool_call>{"name": "note", "arguments": {}, "id": 7}</tool_call>', "", [("note", "{}")]),
        (HERMES, '<tool_call>{"name": "note", "arguments": {}\n</tool_call>', "", [("note", "{}")]),
        (HERMES, "a <tool_call>{'name': 'note'}</tool_call>", "a <tool_call>{'name': 'note'}</tool_call>", []),
        (HERMES, '<tool_call>{"name": ""}</tool_call>', '<tool_call>{"name": ""}</tool_call>', []),
        (HERMES, '<tool_call>{"name": "a b"}</tool_call>', '<tool_call>{"name": "a b"}</tool_call>', []),
        (HERMES, '<tool_call>{"name": "note", "argum', '<tool_call>{"name": "note", "argum', []),
        (HERMES, '<tool_call>{"name": "note", "arguments": {"text": 1 2}}</tool_call>', "", [("note", '{"text": 1 ')]),
        (HERMES, '<tool_call>{"name": "note", "arguments": {"text": "cut', "", [("note", '{"text": "cut')]),
        (
            HERMES,
            '<tool_call>{"name": "note", "arguments": {"text": "two\nlines \\d"}}</tool_call>',
            "",
            [("note", '{"text": "two\\nlines \\\\d"}')],
        ),
        (HERMES, '<tool_call>\n```json\n{"name": "note"}\n```\n</tool_call>.', ".", [("note", "{}")]),
        (HERMES, '<tool_call>```{"name": "note"}```, {"name": "f"}</tool_call>', "", [("note", "{}"), ("f", "{}")]),
        (HERMES, "<tool_call>```json\n[]\n```</tool_call>", "<tool_call>```json\n[]\n```</tool_call>", []),
        (HERMES, '<tool_call>{"name": " note ", "arguments": {}}</tool_call>', "", [("note", "{}")]),
        (
            HERMES,
            '<tool_call>{"type": "function", "function": {"name": "note", "arguments": {"text": "a"}}}</tool_call>',
            "",
            [("note", '{"text": "a"}')],
        ),
        (HERMES, '<tool_call>{"function": {"name": "note", "arguments": "{}"}, "id": 1}', "", [("note", "{}")]),
        (HERMES, '<tool_call>{"function": {"name": "note"}}</tool_call>', "", [("note", "{}")]),
        (HERMES, '<tool_call>{"function": "note"}</tool_call>', '<tool_call>{"function": "note"}</tool_call>', []),
        (
            QWEN_XML,
            '<tool_call><function="note"><parameter="text">\na\n</parameter></function></tool_call>',
            "",
            [("note", '{"text": "a"}')],
        ),
        (QWEN_XML, "<function=note>\n</function>", "", [("note", "{}")]),
        (QWEN_XML, "<function=unknown>\n</function>", "<function=unknown>\n</function>", []),
        (
            QWEN_XML,
            "<tool_call><function=note><parameter=text>a\n<parameter=pinned>true</function></tool_call>",
            "",
            [("note", '{"text": "a", "pinned": true}')],
        ),
        (
            QWEN_XML,
            "<tool_call><function=note><parameter=text></function></tool_call\n></parameter></function></tool_call>",
            "",
            [("note", '{"text": "</function></tool_call\\n>"}')],
        ),
        (
            QWEN_XML,
            "<tool_call><function=note><parameter=text>a</parameter><parameter=pinned>tr",
            "",
            [("note", '{"text": "a"')],
        ),
        (HERMES, '<tool_call>{"name": "note", "arguments": {}}}</tool_call> done', "done", [("note", "{}")]),
        (HERMES, '<tool_call>{"name": "note", "arguments": ""}</tool_call>', "", [("note", "{}")]),
        (HERMES, '<tool_call><tool_call>{"name": "note"}</tool_call></tool_call>', "", [("note", "{}")]),
        (HERMES, '<tool_call>[{"name": "note"}, {"name": "f"}</tool_call>', "", [("note", "{}"), ("f", "{}")]),
        (HERMES, '<tool_call>{"name": "note"}, {"name": "f"}</tool_call>.', ".", [("note", "{}"), ("f", "{}")]),
        (HERMES, '<tool_call>{"name": "note"}, and more', ", and more", [("note", "{}")]),
        (HERMES, '<tool_call>{"name": "note", "arguments": {}} and more', "and more", [("note", "{}")]),
        (
            HERMES,
            '<tool_call>{"name": "note", "arguments": {"text": True, "tags": [1., NaN,]}}</tool_call>',
            "",
            [("note", '{"text": true, "tags": [1.0, "NaN"]}')],
        ),
        (
            HERMES,
            '<tool_call>{"name": "note", "arguments": {"a": 1 2}}</tool_call> a<tool_call>{"name": "f"}</tool_call>',
            "a",
            [("note", '{"a": 1 '), ("f", "{}")],
        ),
        (
            QWEN_XML,
            "<tool_call>\n<function=note>\n<parameter=text>\na\n</parameter>\n<parameter=text>\nb\n</parameter>\n</function>\n</tool_call>",
            "",
            [("note", '{"text": "b"}')],
        ),
        (
            QWEN_XML,
            "<tool_call>\n<function=note>\n<parameter=text>\na</parameter>\n</function>\n</tool_call>\nDone.",
            "Done.",
            [("note", '{"text": "a"}')],
        ),
        (
            QWEN_XML,
            "<tool_call><function=note><parameter=text>a</parameter></tool_call>.",
            ".",
            [("note", '{"text": "a"}')],
        ),
        (QWEN_XML, "<tool_call><function=note><parameter=text>a</parameter>", "", [("note", '{"text": "a"}')]),
        (
            QWEN_XML,
            "<tool_call><function=note><parameter=text>a</parameter></function>",
            "",
            [("note", '{"text": "a"}')],
        ),
        (QWEN_XML, "<tool_call><function=note><parameter=text>a", "", [("note", "")]),
        (
            QWEN_XML,
            "<function=note><parameter=text>a</parameter></function></tool_call>.",
            ".",
            [("note", '{"text": "a"}')],
        ),
        (QWEN_XML, "<tool_call><function=note></function>", "", [("note", "{}")]),
        (QWEN_XML, "<tool_call>\n<function=note>\n</function>\nDone.", "Done.", [("note", "{}")]),
        (
            QWEN_XML,
            "<tool_call><function=note></function><function=note><parameter=text>a</parameter></function></tool_call>",
            "",
            [("note", "{}"), ("note", '{"text": "a"}')],
        ),
        (QWEN_XML, f"<tool_call>\n{2 * NOTED}</tool_call>.", ".", [("note", '{"text": "a"}')] * 2),
        (
            QWEN_XML,
            f"<tool_call>\n{NOTED}<function=note>\n</function>",
            "",
            [("note", '{"text": "a"}'), ("note", "{}")],
        ),
        (
            QWEN_XML,
            f"<tool_call>\n<function=note>\n<parameter=text>\n{2 * NOTED}\n</parameter>\n</function>\n</tool_call>",
            "",
            [("note", json.dumps({"text": 2 * NOTED}))],
        ),
        (
            QWEN_XML,
            f"<tool_call>\n{NOTED}{NOTED.replace('note', 'unknown')}</tool_call>",
            "",
            [("note", json.dumps({"text": f"a\n</parameter>\n</function>\n{NOTED.replace('note', 'unknown')[:37]}"}))],
        ),
        (QWEN_XML, f"<tool_call>{2 * '<function=note></function>'}</tool_call>.", ".", [("note", "{}")] * 2),
        (QWEN_XML, f"<function=note></function>{'<tool_call><function=note></function>'}", "", [("note", "{}")] * 2),
        (GLM, "<tool_call>note\n<tool_call>note</tool_call>.", ".", [("note", "{}")] * 2),
        (GLM, "<tool_call>note</tool_call>", "", [("note", "{}")]),
        (GLM, "<tool_call>note", "", [("note", "{}")]),
        (GLM, '<tool_call>\n{"name": "note", "arguments": {}}\n</tool_call>.', ".", [("note", "{}")]),
        (
            QWEN_XML,
            '<tool_call>{"name": "note"}</tool_call><tool_call>[{"name": "f"}]',
            "",
            [("note", "{}"), ("f", "{}")],
        ),
        (GLM, "<tool_call><tool_call>note</tool_call>", "", [("note", "{}")]),
        (GLM, "<tool_call>unknown", "<tool_call>unknown", []),
        (GLM, "<tool_call>note\n<arg_key>text</arg_key>\n<arg_value>a</arg_value>", "", [("note", '{"text": "a"}')]),
        (GLM, "<tool_call>note<arg_key>text</arg_key><arg_value>a</tool_call>", "", [("note", '{"text": "a"}')]),
        (
            GLM,
            "<tool_call>note<arg_key>text</arg_key><arg_value>a</arg_value><tool_call>note</tool_call>",
            "",
            [("note", '{"text": "a"}'), ("note", "{}")],
        ),
        (GLM, "<tool_call>note<arg_key>text</arg_key><arg_value>a", "", [("note", "")]),
        (KIMI, f"{KB}{KC}functions.note:0{KA}{KE}{KF}", "", [("note", "{}")]),
        (KIMI, f"{KC}note{KA}{{}}}}{KE}{KC}functions.f:12{KA}{KE} done", "done", [("note", "{}"), ("f", "{}")]),
        (
            KIMI,
            f"{KB.replace('calls', 'call')}{KC}note:0{KA}{{}}{KE}{KF.replace('calls', 'call')}",
            "",
            [("note", "{}")],
        ),
        (KIMI, f"{KB}{KC}functionsnote5{KA}{{}}{KE}{KC}functions.note6{KA}{{}}{KE}{KF}", "", [("note", "{}")] * 2),
        (KIMI, f"{KB}{KC}functions:note:7{KA}{{}}{KE}{KC}note8{KA}{{}}{KE}{KF}", "", [("note", "{}")] * 2),
        (KIMI, f"{KB}{KC}functions.other5{KA}{{}}{KE}{KF}", "", [("other5", "{}")]),
        (KIMI, f"{KB}I call {KC}note:0{KA}{{}}{KE} and {KC}f:1{KA}{{}}{KF}", "", [("note", "{}"), ("f", "{}")]),
        (KIMI, f"{KB}{KC}note:0{KA}{{}}{KE} so be it", "so be it", [("note", "{}")]),
        (KIMI, f"So {KB}\n{KF} be it", "So be it", []),
        (DEEPSEEK, f"{DB}{DF}", "", []),
        (KIMI, f"{KB} without {KF}", f"{KB} without {KF}", []),
        (KIMI, f"{KB} without a call", f"{KB} without a call", []),
        (KIMI, f"{KB}{KC}note:0{KA}{{1}}{KE}{KF}", f"{KB}{KC}note:0{KA}{{1}}{KE}{KF}", []),
        (KIMI, f'{KB}{KC}note:0{KA}{{"a" 1}}{KE}{KC}f:1{KA}{KE}{KF}.', ".", [("note", '{"a" '), ("f", "{}")]),
        (DEEPSEEK, f"{DB}{DB}{DC}note{DS}{DE}{DF}", "", [("note", "{}")]),
        (DEEPSEEK, f"{DB}I call {DC}note{DS}null{DE}{DF}", "", [("note", "{}")]),
        (DEEPSEEK, f"{DB}{DC}note{DS}```json\n{{}}\n```{DE}{DF}", "", [("note", "{}")]),
        (DEEPSEEK, f"{DB}{DC}function{DS}note\n```json\n```{DE}{DF}", "", [("note", "{}")]),
        (DEEPSEEK, f"{DB}{DC}function{DS}note\n{{}}{DC}f{DS}{{}}{DF}", "", [("note", "{}"), ("f", "{}")]),
        (MISTRAL, "[TOOL_CALLS]note[ARGS]", "", [("note", "{}")]),
        (MISTRAL, "[TOOL_CALLS]note[ARGS][TOOL_CALLS]f[ARGS]{}", "", [("note", "{}"), ("f", "{}")]),
        (MISTRAL, "[TOOL_CALLS][TOOL_CALLS]note [ARGS] {}", "", [("note", "{}")]),
        (MISTRAL, '[TOOL_CALLS]note[ARGS]{"a" 1} so [TOOL_CALLS]f{}', "", [("note", '{"a" '), ("f", "{}")]),
        (GLM, "<tool_call>not a call</tool_call>", "<tool_call>not a call</tool_call>", []),
        (MISTRAL, '[TOOL_CALLS]note{"text": "a"}', "", [("note", '{"text": "a"}')]),
        (MISTRAL, '[TOOL_CALLS]note[CALL_ID]123456789[ARGS]{"text": "a"}', "", [("note", '{"text": "a"}')]),
        (MISTRAL, "[TOOL_CALLS] are marks", "[TOOL_CALLS] are marks", []),
        (MISTRAL, "[TOOL_CALLS][]", "[TOOL_CALLS][]", []),
        (DEEPSEEK, "<｜tool▁call▁begin｜>note<｜tool▁sep｜>{}<｜tool▁call▁end｜>", "", [("note", "{}")]),
        (GRANITE, '<|tool_call|>{"name": "note", "arguments": {}}', "", [("note", "{}")]),
        (GRANITE, '<tool_call>[{"name": "note", "arguments": {}}]', "", [("note", "{}")]),
    ],
)
def test_what_models_write_beside_the_rule(
    syntax: Syntax, answer: str, text: str, calls: list[tuple[str, str]]
) -> None:
    assert split(syntax, [answer]) == (text, calls) == split(syntax, list(answer))


def test_where_a_mark_is_a_token_its_letters_are_text() -> None:
    call = '{"name": "note", "arguments": {}}'
    quoted, made = f"<tool_call>{call}</tool_call>", f"{TOKEN_MARK}<tool_call>{call}{TOKEN_MARK}</tool_call>"
    assert split(HERMES, [f"Write {quoted}"], ("<tool_call>", "</tool_call>")) == (f"Write {quoted}", [])
    assert split(HERMES, [f"Write {made}"], ("<tool_call>", "</tool_call>")) == ("Write", [("note", "{}")])


def test_a_name_is_told_before_the_arguments_have_ended() -> None:
    splitter = CallSplitter(HERMES, ToolSchemas(TOOLS))
    begun = list(splitter.push('<tool_call>{"name": "note", "arguments": {"text": "so fa'))
    assert [piece.call.name for piece in begun if piece.call] == ["note", None]
    assert "".join(piece.call.arguments for piece in begun if piece.call) == '{"text": "so fa'
