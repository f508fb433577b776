"""Calls that a family's own template writes are read back equal, whatever marks their values hold."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from moeinf.text.templates.chats import ChatTemplates
from moeinf.text.templates.own import own_template
from moeinf.text.templates.traced import MARK
from moeinf.text.text_stream import TOKEN_MARK, Piece
from moeinf.text.tool_calls.choice import find_syntax
from moeinf.text.tool_calls.open_stream import open_stream
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.splitter import CallSplitter
from moeinf.text.tool_calls.syntax import Syntax
from tests.support.tool_families import BY_NAME, FAMILIES
from tests.support.true_configs import PUBLISHED

PARAMETERS = {
    "s": {"type": "string"},
    "t": {"type": "string"},
    "n": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "i": {"type": "integer"},
    "b": {"type": "boolean"},
    "a": {"type": "array"},
    "o": {"type": "object"},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}}
    for name, parameters in (("f", {"type": "object", "properties": PARAMETERS}), ("now", {"type": "object"}))
]
TEMPLATES = {
    **{name: (PUBLISHED / name / "chat_template.jinja").read_text(encoding="utf-8") for name in (
        "deepseek-v3", "glm-4.5", "glm-4.7-flash", "granite-3.1-1b-a400m-instruct", "granite-4.0-h-tiny", "kimi-k2",
        "kimi-k2.5", "laguna-xs.2", "ling-2.0", "ling-3.0-flash", "nemotron-3-nano", "qwen3-30b-a3b",
        "qwen3-coder-480b", "qwen3.5-35b-a3b", "step-3.5-flash", "deepseek-v3.2", "deepseek-v4-flash",
        "hy3-preview", "lfm2-8b-a1b", "minimax-m2.5", "north-mini-code-1.0", "solar-open-100b",
    )},
    **{name: BY_NAME[name].template for name in ("deepseek-r1", "mistral", "magistral")},
    **{name: own_template({"config.json": json.dumps({"model_type": name}).encode()}, "m") for name in (
        "deepseek_v32", "deepseek_v4", "deepseek_v41", "kimi_k3",
    )},
}  # fmt: skip
MARKS = sorted({mark for family in FAMILIES if (syntax := find_syntax(family.template)) for mark in syntax.marks})
QUOTED = [
    '<tool_call>\n{"name": "f", "arguments": {"s": "x"}}\n</tool_call>',
    "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"s": "x"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "<|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
    '[TOOL_CALLS][{"name": "f", "arguments": {}}]',
]
PIECES = [
    *MARKS, *QUOTED, "<function=f>", "<parameter=s>", "</parameter>", "</function>", "<think>", "</think>",
    "<|im_end|>", "\n</parameter>\n</function>\n</tool_call>", "</arg_value>\n</tool_call>", "}}",
    '"', "'", "\\", "{", "[", "```json\n", "\n", "\n\n", " ", "a", "True", "null", "5", "日本", "<", ">", "😀",
]  # fmt: skip
TEXT = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)
ITEMS = TEXT | st.integers() | st.booleans() | st.none()
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "s": TEXT,
        "t": TEXT,
        "n": st.none() | TEXT.filter(lambda text: text.strip().lower() not in ("null", "none")),
        "i": st.integers(),
        "b": st.booleans(),
        "a": st.lists(ITEMS, max_size=3),
        "o": st.dictionaries(TEXT, ITEMS, max_size=3),
    },
)
CALLS = st.lists(st.tuples(st.just("f"), ARGUMENTS) | st.just(("now", {})), min_size=1, max_size=3)
HEADS = [
    "<|channel|>commentary to=functions.NAME<|constrain|>json<|message|>",
    "<|channel|>analysis to=NAME code<|message|>",
    " to=functions.NAME<|channel|>commentary json<|message|>",
]
# What nobody can tell from the end of a parameter or call and the beginning of the next one, or an end written twice.
AMBIGUOUS = re.compile(
    r"</parameter>\s*<parameter=[^<>\n]*>|</parameter>\s*<parameter name="
    r"|\S\s*\n\s*</parameter>\s*\Z"
    r"|</arg_value>\s*<arg_key>[^<\n]*</arg_key>\s*<arg_value>"
    r"|</parameter>\s*</function>\s*</tool_call>.*<tool_call>\s*<function="
    r"|</arg_value>\s*</tool_call>.*<tool_call>\s*[\w./:-]+\s*(?:<arg_key>|</tool_call>)",
    re.DOTALL,
)


@cache
def chats_of(name: str) -> ChatTemplates:
    source = TEMPLATES.get(name) or (PUBLISHED / name / "chat_template.jinja").read_text(encoding="utf-8")
    return ChatTemplates(source, source, {"bos_token": "<s>", "eos_token": "</s>"}, ["<s>", "</s>", "<|im_end|>"])


def written(name: str, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """The calls as the template writes them, and what stands in front of their first result."""
    chats = chats_of(name)
    assert chats.syntax is not None
    called = [
        {"id": f"call_{i}", "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
        for i, (tool, arguments) in enumerate(calls)
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "OUTCOME"} for call in called]
    asking = [{"role": "system", "content": "S"}, {"role": "user", "content": "ASKED"}]
    answer = {"role": "assistant", "content": "", "tool_calls": called}
    text = chats.render([*asking, answer, *results], {"tools": TOOLS})[0].replace(MARK, "")
    asked = text.rindex("ASKED") + len("ASKED")
    opened = min(at for mark in chats.syntax.opens if (at := text.find(mark, asked)) >= 0)
    return text[opened : text.index("OUTCOME", asked)]


@cache
def end_of(name: str) -> str:
    """The beginning of what stands behind the last call."""
    syntax = chats_of(name).syntax
    assert syntax is not None
    text = written(name, [("f", {"s": "VALUE"})])
    behind = text[text.index("VALUE") :]
    if "</s>" in behind:
        return "</s>"
    ends = [behind.rindex(close) + len(close) for close in syntax.closes if close in behind]
    return behind[max(ends, default=behind.rfind("}") + 1 + ("]" in behind)) :][:14]


def read(syntax: Syntax, text: str, tokens: Sequence[str], size: int) -> tuple[str, list[tuple[str, Any]]]:
    for token in tokens:
        text = text.replace(token, TOKEN_MARK + token)
    parts = [text[at : at + size] for at in range(0, len(text), size)] if size else [text]
    splitter = CallSplitter(syntax, ToolSchemas(TOOLS), frozenset(tokens))
    return found_in([*itertools.chain.from_iterable(map(splitter.push, parts)), *splitter.flush()])


def found_in(pieces: Sequence[Piece]) -> tuple[str, list[tuple[str, Any]]]:
    """The text, and the calls with their arguments."""
    names = {piece.call.index: piece.call.name for piece in pieces if piece.call and piece.call.name is not None}
    arguments = dict.fromkeys(names, "")
    for piece in pieces:
        if piece.call:
            arguments[piece.call.index] += piece.call.arguments
    return "".join(piece.text for piece in pieces), [(str(names[at]), json.loads(arguments[at])) for at in names]


def texts_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return [text for each in value for text in texts_in(each)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=30, deadline=None)
@given(calls=CALLS, size=st.integers(0, 7))
def test_what_the_template_writes_is_read_back_equal(
    name: str, calls: list[tuple[str, dict[str, Any]]], size: int
) -> None:
    texts = [text for _, arguments in calls for text in texts_in(arguments)]
    assume(not any(map(AMBIGUOUS.search, texts)))
    syntax, text = chats_of(name).syntax, written(name, calls)
    assert syntax is not None
    answer = text[: text.rindex(end_of(name))]
    for tokens in ((), sorted(syntax.marks, key=len, reverse=True)):
        assert read(syntax, answer, tokens, size) == ("", calls)


# What stands between marks of its own is no escaped text there, and values of these forms cannot hold the marks.
KEYS = st.text("abz_09", min_size=1, max_size=5).filter(lambda key: key != "item")
WORDS = st.text("ab {}[]<>/=:,'\"\\\n日", min_size=1, max_size=9).map(lambda text: f"a{text}b")
LEAVES = WORDS | st.integers() | st.booleans()
NESTED = st.recursive(
    LEAVES, lambda inner: st.lists(inner, min_size=1, max_size=3) | st.dictionaries(KEYS, inner, min_size=1, max_size=3)
)
PLAIN_ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "s": WORDS,
        "t": WORDS,
        "i": st.integers(),
        "b": st.booleans(),
        "a": st.lists(NESTED, min_size=1, max_size=3),
        "o": st.dictionaries(KEYS, NESTED, min_size=1, max_size=3),
    },
)


@pytest.mark.parametrize("name", ["gemma-4-26b-a4b", "minimax-m3"])
@settings(max_examples=30, deadline=None)
@given(
    calls=st.lists(st.tuples(st.just("f"), PLAIN_ARGUMENTS) | st.just(("now", {})), min_size=1, max_size=3),
    size=st.integers(0, 7),
)
def test_values_within_values_are_read_back_equal(
    name: str, calls: list[tuple[str, dict[str, Any]]], size: int
) -> None:
    syntax, text = chats_of(name).syntax, written(name, calls)
    assert syntax is not None
    answer = text[: text.rindex(syntax.closes[-1]) + len(syntax.closes[-1])]
    for tokens in ((), sorted(syntax.marks, key=len, reverse=True)):
        assert read(syntax, answer, tokens, size) == ("", calls)


@settings(max_examples=100, deadline=None)
@given(calls=CALLS, heads=st.lists(st.sampled_from(HEADS), min_size=3, max_size=3), data=st.data())
def test_what_gpt_oss_writes_is_read_back_equal(
    calls: list[tuple[str, dict[str, Any]]], heads: list[str], data: st.DataObject
) -> None:
    """Its messages are JSON, whose marks are letters; only the parts of a head are tokens."""
    tokenizer, ids = gpt_oss(), list[int]()
    for head, (name, arguments) in zip(heads, calls, strict=False):
        ids += tokenizer.encode(("<|end|><|start|>assistant" if ids else "") + head.replace("NAME", name)).ids
        text = json.dumps(arguments, ensure_ascii=data.draw(st.booleans()))
        size = data.draw(st.integers(1, 7))
        tokenizer.encode_special_tokens = True
        ids += [token for at in range(0, len(text), size) for token in tokenizer.encode(text[at : at + size]).ids]
        tokenizer.encode_special_tokens = False
    begun = tokenizer.encode("<|start|>assistant").ids
    stream = open_stream(tokenizer, begun, skip_special=True, tags=None, syntax=None, tools=TOOLS)
    pieces = [*(piece for token in ids for piece in stream.step([token])), *stream.flush()]
    assert found_in(pieces) == ("", calls)


@cache
def gpt_oss() -> Library:
    return BY_NAME["gpt-oss"].tokenizer()


def test_a_mark_that_is_written_for_ever_is_text() -> None:
    for name in TEMPLATES:
        syntax = chats_of(name).syntax
        assert syntax is not None
        text = syntax.opens[0] * 3000 + " is no call"
        assert read(syntax, text, (), 0) == (text, [])
