"""Published templates make of calls and their results what jinja2 alone makes of them."""

from __future__ import annotations

import json
from datetime import datetime
from functools import cache
from typing import Any

import jinja2
import jinja2.ext
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import nodes
from jinja2.parser import Parser

from moeinf.errors import TextError
from moeinf.text.templates.chats import ChatTemplates
from moeinf.text.templates.rendering import ChatTemplate
from moeinf.text.templates.template_facts import read_facts
from moeinf.text.tool_calls.choice import find_syntax
from moeinf.text.tool_calls.told.call_messages import fitted, in_templates_form
from tests.support.tokenizer_tools import by_tokenizer
from tests.support.true_configs import PUBLISHED

SOURCES = {
    path.parent.name: path.read_text(encoding="utf-8") for path in sorted(PUBLISHED.glob("*/chat_template.jinja"))
}
WITH_TOOLS = [name for name, source in SOURCES.items() if read_facts(source).tools and "tools" in source]


class Generation(jinja2.ext.Extension):
    tags = {"generation"}  # noqa: RUF012 - the type that jinja2 declares

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


def refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


@cache
def compiled(source: str) -> jinja2.Template:
    plain = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    plain.filters["tojson"] = lambda value, **options: json.dumps(value, **{"ensure_ascii": False} | options)
    plain.globals |= {"raise_exception": refuse, "strftime_now": datetime.now().strftime}
    return plain.from_string(source)


def by_jinja(source: str, messages: Any, **variables: Any) -> str:
    """As llama.cpp renders: without the sandbox, which forbids a queue."""
    told = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True}
    return compiled(source).render(messages=messages, **variables, **told)


@cache
def traced(name: str) -> ChatTemplate:
    return ChatTemplate(SOURCES[name], {"bos_token": "<s>", "eos_token": "</s>"}, ("user", "assistant"))


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return {"type": "function", "function": {"name": name, "description": f"does {name}", "parameters": parameters}}


TOOLS = [
    tool("f", s={"type": "string"}, i={"type": "integer"}),
    tool(
        "g", k={"anyOf": [{"type": "string"}, {"type": "null"}], "description": "d"}, a={"type": "array", "items": {}}
    ),
]


def call(n: int, name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": f"functions.{name}:{n}", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(n: int, name: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"functions.{name}:{n}", "content": text}


USER = {"role": "user", "content": "q"}
CHATS: dict[str, list[dict[str, Any]]] = {
    "a call": [USER, {"role": "assistant", "content": None, "tool_calls": [call(0, "f", s="x")]}, result(0, "f", "42")],
    "text, a thought and values": [
        {"role": "system", "content": "Be brief."},
        USER,
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "Hm.",
            "tool_calls": [call(0, "g", k=None, a=[1, {"b": True}], s="a\n<b>'\"&é")],
        },
        result(0, "g", '{"a": [1, "é"]}'),
    ],
    "two rounds of two calls": [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call(0, "f", s="x"), call(1, "g", k="y")]},
        result(0, "f", "r0"),
        result(1, "g", "r1"),
        {"role": "assistant", "content": "", "tool_calls": [call(2, "g", k="z"), call(3, "f", s="w")]},
        result(2, "g", "r2"),
        result(3, "f", "r3"),
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "thanks"},
    ],
}


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", WITH_TOOLS)
def test_calls_and_results_are_written_as_the_template_says(name: str, chat: str) -> None:
    source, before = SOURCES[name], datetime.now().date()
    syntax = find_syntax(source)
    fitting = fitted(in_templates_form(CHATS[chat], syntax), source, syntax)
    text, notes = ChatTemplates(source, source, {"bos_token": "<s>", "eos_token": "</s>"}, []).render(
        CHATS[chat], {"tools": TOOLS}
    )
    if datetime.now().date() == before:  # some write the day
        assert text == by_jinja(source, fitting, **by_tokenizer(source, TOOLS)) and not notes


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_results_stand_in_the_order_of_their_calls(name: str) -> None:
    """Most templates name no call where they write a result; clients send results as they come."""
    source = SOURCES[name]
    turn = {"role": "assistant", "content": "", "tool_calls": [call(0, "f", s="x"), call(1, "g", k="y")]}
    render = ChatTemplates(source, source, {"bos_token": "<s>", "eos_token": "</s>"}, []).render
    first, second = result(0, "f", "r0"), result(1, "g", "r1")
    before = datetime.now().date()
    later = {"role": "user", "content": "later"}
    orders = [[first, second, later], [second, first, later], [later, second, first], [first, later, second]]
    texts = {render([USER, turn, *order], {"tools": TOOLS})[0] for order in orders}
    assert len(texts) == 1 or datetime.now().date() != before


def test_solar_reads_its_thoughts_behind_the_last_question() -> None:
    source, chat = SOURCES["solar-open-100b"], CHATS["text, a thought and values"]
    text, _ = ChatTemplates(source, source, {}, []).render(chat, {"tools": TOOLS})
    assert "<|begin|>assistant<|think|>Hm.<|end|><|begin|>assistant<|tool_calls|>" in text


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_tools_are_written_as_they_were_given(name: str) -> None:
    """Without a description or arguments, with their members in another order, and with one that few know."""
    whole = tool("f", s={"type": "string"})["function"]
    odd = [
        {"name": "f", "parameters": whole["parameters"]},
        {"name": "f", "description": "d"},
        {"description": "d", "strict": True, "parameters": whole["parameters"], "name": "f"},
    ]
    source = SOURCES[name]
    render = ChatTemplates(source, source, {"bos_token": "<s>", "eos_token": "</s>"}, []).render
    for function in odd:
        tools, before = [{"type": "function", "function": function}], datetime.now().date()
        text, _ = render([USER], {"tools": tools})
        try:
            expected = by_jinja(source, [USER], **by_tokenizer(source, tools))
        except (jinja2.TemplateError, TypeError):  # it reads what is not there, which it is then given
            filled = {"description": "", "parameters": {"type": "object", "properties": {}}} | function
            expected = by_jinja(source, [USER], tools=[{"type": "function", "function": filled}])
        if datetime.now().date() == before:
            assert text == expected


def test_kimi_keeps_a_queue_of_calls() -> None:
    for name in ("kimi-k2", "kimi-k2-thinking"):
        source = SOURCES[name]
        text, _ = ChatTemplates(source, source, {}, []).render(CHATS["two rounds of two calls"], {"tools": TOOLS})
        places = [text.index(f"functions.{each}<|tool_call_argument_begin|>") for each in ("f:0", "g:1", "g:2", "f:3")]
        places += [text.index(f"## Return of functions.{each}") for each in ("f:0", "g:1", "g:2", "f:3")]
        assert sorted(places) == [places[i] for i in (0, 1, 4, 5, 2, 3, 6, 7)]


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [
        ("{% set l = [1] %}{{ l.append(2) or l }}", "[1, 2]"),
        (
            "{% set n = namespace(l=[]) %}{% for m in messages %}{{ n.l.append(m.role) }}{% endfor %}{{ n.l[0] }}",
            "Noneuser",
        ),
        ("{% set d = {} %}{{ d.update({'a': 1}) or d }}{{ d.pop('a') }}{{ d }}", "{'a': 1}1{}"),
        ("{% set l = messages | list %}{{ l.pop().content }}{{ messages | length }}", "q1"),
        ("{% set l = messages[:] %}{{ l.pop().content }}{{ messages | length }}", "q1"),
        ("{{ '-' * 5 }}{{ 3 * 'ab' }}{{ ([0] * 3) | length }}{{ 'x' * 0 }}{{ 'x' * -2 }}", "-----ababab3"),
        ("{{ messages.append(1) }}", None),
        ("{{ messages[0].update({'role': 'system'}) }}", None),
        ("{{ messages[0].pop('role') }}", None),
        ("{{ tools[0].function.parameters.properties.clear() }}", None),
        ("{{ '-' * 2000000 }}", None),
        ("{{ ([0] * 1000) * 2000 }}", None),
        ("{{ '%s' % 1 }}{{ '%4d%%' % 50 }}", "1  50%"),
        ("{{ '%99999d' % 1 }}", None),
        ("{{ '%.99999f' | format(1) }}", None),
        ("{{ '%*d' % (9999999, 1) }}", None),
    ],
)
def test_a_template_changes_what_it_made_and_not_what_it_is_given(changes: str, allowed: str | None) -> None:
    changes = f"{changes}{{# tools are called by <tool_call> #}}"
    made = ChatTemplates(changes, changes, {}, [])
    if allowed is None:
        with pytest.raises(TextError, match=r"unsafe|not safely callable|for a template|in a template"):
            made.render([USER], {"tools": TOOLS})
    else:
        assert made.render([USER], {"tools": TOOLS})[0] == allowed


BITS = [
    "hi",
    "</think>",
    "<think>",
    "\n",
    " ",
    "é日",
    "{%",
    "{{ x }}",
    "<tool_response>",
    "'",
    '"',
    "&lt;",
    "\\n",
    "%s",
    "{0}",
]
TEXTS = st.lists(st.sampled_from([*BITS, "<|im_end|>", "[INST]", "<|end|>"]), max_size=5).map("".join)
ARGUMENTS = st.dictionaries(
    TEXTS, TEXTS | st.none() | st.booleans() | st.integers() | st.lists(TEXTS, max_size=2), max_size=3
)


@st.composite
def chats(draw: st.DrawFn) -> list[dict[str, Any]]:
    chat = [{"role": "system", "content": draw(TEXTS)}] if draw(st.booleans()) else []
    for n in range(draw(st.integers(1, 3))):
        chat.append({"role": "user", "content": draw(TEXTS)})
        turn: dict[str, Any] = {"role": "assistant", "content": draw(TEXTS)}
        if draw(st.booleans()):
            turn |= {"reasoning_content": (thought := draw(TEXTS)), "thinking": thought}
        if draw(st.booleans()):
            turn["tool_calls"] = [call(n, "f", **draw(ARGUMENTS))]
            chat += [turn, result(n, "f", draw(TEXTS))]
        else:
            chat.append(turn)
    return [*chat, {"role": "user", "content": draw(TEXTS)}]


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(SOURCES)), chats(), st.sampled_from([None, TOOLS]))
def test_a_template_does_with_any_text_what_it_does_alone(name: str, chat: list[dict[str, Any]], tools: Any) -> None:
    before = datetime.now().date()
    try:
        right = by_jinja(SOURCES[name], chat, tools=tools)
    except (jinja2.TemplateError, TypeError):
        return  # a template that refuses such a chat
    if datetime.now().date() == before:
        assert traced(name)._render(chat, {"tools": tools}, True) == right
