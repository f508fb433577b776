"""Calls are told apart where a model forgets what closes them, and so are the words that it says around them."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from moeinf.text.thoughts import Tags, tags_of
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.splitter import CallSplitter
from moeinf.text.tool_calls.syntax import Syntax
from moeinf.text.tool_calls.syntaxes.deepseek_calls import DEEPSEEK
from moeinf.text.tool_calls.syntaxes.gemma_calls import GEMMA
from moeinf.text.tool_calls.syntaxes.glm_calls import GLM
from moeinf.text.tool_calls.syntaxes.granite_calls import GRANITE
from moeinf.text.tool_calls.syntaxes.hermes import HERMES
from moeinf.text.tool_calls.syntaxes.invoke_calls import DSML, DSML_V4, DSML_V41, MINIMAX
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


DOUBLED = (
    "<tool_call>\n<function=note>\n<parameter=text>\n{}\n</parameter>\n<parameter=pinned>\ntrue\n</parameter>\n"
    "</function>\n</tool_call>"
)
END, QUOTED = "</parameter>", "<parameter=x>\n1\n</parameter>"


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_mark_behind_a_value_may_come_twice(size: int) -> None:
    """As Qwen3.6 has written it (llama.cpp#24807). A value that quotes a whole parameter keeps its end."""
    for text, value in (
        (DOUBLED.format("a").replace(END, f"{END}\n{END}", 1), "a"),
        (DOUBLED.format("a").replace(END, f"{END}{END}", 1), "a"),
        (DOUBLED.format("a\n").replace(END, f"{END}\n{END}\n{END}", 1), "a\n"),
        (DOUBLED.format("a").replace(f"{END}\n</f", f"{END}\n{END}\n</f"), "a"),
        (DOUBLED.format(QUOTED), QUOTED),
        (DOUBLED.format(QUOTED).replace(QUOTED + "\n", f"{QUOTED}\n{END}\n"), QUOTED),
        (DOUBLED.format(END), END),
        (DOUBLED.format(f"a {END}"), f"a {END}"),
    ):
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        assert split(QWEN_XML, parts)[1] == [("note", json.dumps({"text": value, "pinned": True}))], text


@pytest.mark.parametrize("given", ["functions.note:2", "functions_note_2", "functions_note:2", "note_2"])
def test_an_id_of_kimi_may_lack_its_marks(given: str) -> None:
    """As Kimi K2.7 has written it (llama.cpp#24658)."""
    call = f"<|tool_call_begin|>{given}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    answer = f"<|tool_calls_section_begin|>{call}<|tool_calls_section_end|>"
    assert split(KIMI, [answer])[1] == [EMPTY]


def qwen(*values: str) -> str:
    marks = zip(("text", "tags"), values, strict=False)
    inner = "".join(f"<parameter={name}>\n{value}</parameter>\n" for name, value in marks)
    return f"<tool_call>\n<function=note>\n{inner}</function>\n</tool_call>"


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("answer", "calls"),
    [
        (qwen("a", "[1]\n"), [{"text": "a", "tags": [1]}]),
        (qwen("a") + "\n" + qwen("b\n"), [{"text": "a"}, {"text": "b"}]),
        (qwen("a\n", "[1]") + "\n" + qwen("b\n", "[2]\n"), [{"text": "a", "tags": [1]}, {"text": "b", "tags": [2]}]),
        (qwen("a\n", "[1]\n").replace("</function>", "</function>\n</function>"), [{"text": "a", "tags": [1]}]),
        (qwen("x <parameter=y>1</parameter>\n<parameter=z>2</parameter> end\n", "[1]\n"),
         [{"text": "x <parameter=y>1</parameter>\n<parameter=z>2</parameter> end", "tags": [1]}]),
        (qwen("a</parameter>\n</function>\n</tool_call> ends it\n", "[1]\n"),
         [{"text": "a</parameter>\n</function>\n</tool_call> ends it", "tags": [1]}]),
    ],
)  # fmt: skip
def test_the_line_behind_a_value_may_be_forgotten(answer: str, calls: list[object], size: int) -> None:
    """As Qwen3.6 forgets it now and then (llama.cpp#26763)."""
    parts = [answer[at : at + size] for at in range(0, len(answer), size)]
    assert split(QWEN_XML, parts) == (("", ""), [("note", json.dumps(call)) for call in calls])


@pytest.mark.parametrize("stray", ["</arg_value>", "</arg_key>\n"])
@pytest.mark.parametrize("end", ["</tool_call>", ""])
def test_a_call_of_glm_without_parameters_may_end_one(stray: str, end: str) -> None:
    """As GLM-5.2 has written it."""
    assert split(GLM, [f"Now.<tool_call>note{stray}{end}"]) == (("", "Now."), [EMPTY])
    assert split(GLM, [f"<tool_call>other{stray}{end}"])[1] == []


def invoke(mark: str, city: str) -> str:
    parameter = f'<{mark}parameter name="city"' + (' string="true">' if mark else ">")
    return f'<{mark}invoke name="get_weather">\n{parameter}{city}</{mark}parameter>\n</{mark}invoke>'


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("syntax", "mark", "section"),
    [
        (MINIMAX, "", "minimax:tool_call"),
        (DSML, "｜DSML｜", "｜DSML｜function_calls"),
        (DSML_V4, "｜DSML｜", "｜DSML｜tool_calls"),
        (DSML_V41, "｜DSML｜ ", "｜DSML｜ calls"),
    ],
)
def test_calls_may_lack_what_holds_them(syntax: Syntax, mark: str, section: str, size: int) -> None:
    """As DeepSeek V4 has written them (sglang#40236)."""
    rome, oslo = invoke(mark, "Rome"), invoke(mark, "Oslo")
    for answer, text, calls in (
        (f"Now.\n\n{rome}", "Now.", [ROME]),
        (f"Now.\n\n{rome}\n{oslo}\n</{section}>", "Now.", [ROME, OSLO]),
        (f"{rome}\nDone.", "Done.", [ROME]),
        (f"<{section}>\n{rome}", "", [ROME]),
        (f'<{section}>\n<{mark}invoke name="note"/>\n{oslo}\n</{section}>', "", [EMPTY, OSLO]),
        (f'<{mark}invoke name="note" />', "", [EMPTY]),
        (rome.replace("get_weather", "other"), rome.replace("get_weather", "other"), []),
        (f'A tag is <{mark}invoke name="note">.', f'A tag is <{mark}invoke name="note">.', []),
    ):
        parts = [answer[at : at + size] for at in range(0, len(answer), size)]
        assert split(syntax, parts) == (("", text), calls), answer


def test_the_mark_of_a_section_may_be_misspelt() -> None:
    """As DeepSeek V4 has written it (vllm#51914)."""
    answer = f"<｜DSML｜toolcalls>\n{invoke('｜DSML｜', 'Rome')}\n</｜DSML｜tool_calls>"
    assert split(DSML_V4, [answer]) == (("", ""), [ROME])


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('tags:["x", "a, b"],text:<|"|>y<|"|>', {"tags": ["x", "a, b"], "text": "y"}),
        ("tags:['it\\'s', '}'],text:'y'", {"tags": ["it's", "}"], "text": "y"}),
        (
            'tags=["x"],text="Smith, \\"a\\", 2024",pinned=true',
            {"tags": ["x"], "text": 'Smith, "a", 2024', "pinned": True},
        ),
        ('"text": "a\\nb", "more": {"mode": "fast", "n": 1}', {"text": "a\nb", "more": {"mode": "fast", "n": 1}}),
        ('text:"say "hi" now"', {"text": 'say "hi" now'}),
        ('text:"hi" he said', {"text": '"hi" he said'}),
        ('text:<|"|>say "hi", ok<|"|>', {"text": 'say "hi", ok'}),
        ("text:it's,pinned:true", {"text": "it's", "pinned": True}),
        ("text:a=b", {"text": "a=b"}),
    ],
)
def test_texts_of_gemma_may_stand_in_other_quotes(written: str, arguments: object, size: int) -> None:
    """As Gemma 4 writes them within lists and objects (vllm#51284)."""
    answer = f"<|tool_call>call:note{{{written}}}<tool_call|>"
    parts = [answer[at : at + size] for at in range(0, len(answer), size)]
    assert split(GEMMA, parts) == (("", ""), [("note", json.dumps(arguments))])
