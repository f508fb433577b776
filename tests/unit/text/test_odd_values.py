"""No value that a user or client gives ends the text process, and what cannot be used is refused in one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from moeinf.errors import MoeinfError, TextError, UsageError
from moeinf.sampling.constraint import AnswerFormat, Language, held_to, one_of
from moeinf.text.tokenizer import Tokenizer, whole_characters

MakeFolder = Callable[..., Path]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if x is defined %}{{ x }}{{ x | tojson }}{% endif %}"
USER = [{"role": "user", "content": "hi"}]


@pytest.fixture
def tokenizer(model_folder: MakeFolder) -> Iterator[Tokenizer]:
    with Tokenizer(model_folder(TEMPLATE)) as made:
        made.encode("begun")
        process = made._process._process
        yield made
        assert made.decode(made.encode("still alive")) == "still alive"
        assert made._process._process is process, "it is the same process as before"


def nested(levels: int, around: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = around(value)
    return value


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        (nested(100_000, lambda inner: [inner]), "200 levels"),
        (nested(300, lambda inner: {"k": inner}), "200 levels"),
        (LOOP, "200 levels"),
        (10**5000, "no JSON"),
        (math.nan, "no JSON"),
        (-math.inf, "no JSON"),
        (date(2026, 1, 1), "no JSON"),
        (b"\xff", "no JSON"),
        ({1}, "no JSON"),
        ("x" * 5_000_000, "4 MiB"),
    ],
    ids=range(10),
)
def test_a_variable_that_no_template_can_be_told_is_refused(tokenizer: Tokenizer, variable: Any, said: str) -> None:
    with pytest.raises(TextError, match=said) as caught:
        tokenizer.render(USER, {"x": variable})
    assert "\n" not in str(caught.value)


def test_other_odd_variables_are_told(tokenizer: Tokenizer) -> None:
    odd: list[Any] = [
        nested(190, lambda inner: [inner]),
        10**4000,
        -0.0,
        None,
        "\0",
        {"": {}, 1: ()},
        "\ufffe\U0010ffff",
    ]
    for variable in odd:
        assert tokenizer.render(USER, {"x": variable})[0].startswith("hi")


HALVES = ["\ud83d", "a\udc00b", "\udc00\ud800", "\ud83d\ude00\ud83d"]


@pytest.mark.parametrize("text", HALVES)
def test_half_a_surrogate_pair_becomes_a_replacement_character_everywhere(tokenizer: Tokenizer, text: str) -> None:
    right = whole_characters(text)
    assert "\ufffd" in right and right.isprintable()
    tool = {"type": "function", "function": {"name": "f", "description": text, "parameters": {text: text}}}
    assert tokenizer.decode(tokenizer.encode(text)) == right
    shown, _ = tokenizer.render([{"role": "user", "content": text}], {"x": {text: [text]}, "tools": [tool]})
    assert right in shown and tokenizer.decode(tokenizer.encode_chat(shown)) == shown
    formats: list[AnswerFormat] = [{"const": text}, one_of([text]), Language("lark", f'start: "{text}"')]
    formats += [{"type": "object", "properties": {text: {}}, "required": [text]}, Language("regex", text)]
    for format in formats:
        stream = tokenizer.stream(tools=[tool])
        held_to(stream, format, tokenizer.num_ids)
        stream.flush()


def test_characters_that_are_whole_stay(tokenizer: Tokenizer) -> None:
    for text in ("\0", "a\0b", "😀", "\ufffe", "\U0010ffff", "\r\n", "\u202e", "e\u0301"):
        assert whole_characters({text: [text]}) == {text: [text]}
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    "schema",
    [
        nested(250, lambda inner: {"type": "array", "items": inner if inner != 1 else {}}),
        nested(190, lambda inner: {"type": "array", "items": inner if inner != 1 else {}}),
        {"type": "integer", "multipleOf": 999_983},
        {"type": "array", "items": {"anyOf": [{"type": "number", "multipleOf": 12345.6789}]}},
        {"type": "string", "pattern": "(?=a)b"},
        {"type": "string", "pattern": "(a"},
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"type": "integer", "minimum": 10**400},
        {"type": "string", "minimum": math.nan},
        {"enum": ["x" * 70_000]},
        {"enum": []},
        {"not": {}},
    ],
    ids=range(13),
)
def test_a_schema_that_cannot_be_held_is_refused_in_one_line(tokenizer: Tokenizer, schema: Any) -> None:
    with pytest.raises((UsageError, TextError)) as caught:
        held_to(tokenizer.stream(), schema, tokenizer.num_ids)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "format",
    [
        {"type": "number", "multipleOf": 0.01},
        {"type": "integer", "multipleOf": 1_000_000},
        {"type": "string", "maxLength": 10**9},
        {"type": "string", "pattern": "(a+)+b"},
        {"type": "array", "minItems": 10**6, "items": {}},
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(900)}},
        {"enum": [f"value {i}" for i in range(3000)]},
        Language("regex", "((a*)*)*b|(.{1,5000}x){1,1000}"),
        Language("lark", "start: a a a a a\na: | a a"),
    ],
    ids=range(9),
)
def test_a_large_form_is_followed(tokenizer: Tokenizer, format: AnswerFormat) -> None:
    assert len(held_to(tokenizer.stream(), format, tokenizer.num_ids).allowed())


@pytest.mark.parametrize("limit", ["_GRAMMAR_LIMIT_S", "_GRAMMAR_CPU_S"])
def test_a_schema_that_takes_too_long_is_stopped_and_says_so(
    model_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    for name in ("_GRAMMAR_LIMIT_S", "_GRAMMAR_CPU_S"):
        monkeypatch.setattr(f"moeinf.text.tokenizer.{name}", 0.2 if name == limit else 100.0)
    slow = {"allOf": [{"type": "string", "pattern": f"^.*a.{{{n}}}$"} for n in range(39)]}
    with Tokenizer(model_folder(TEMPLATE)) as tokenizer:
        with pytest.raises(MoeinfError, match=r"took .* give a simpler schema"):
            held_to(tokenizer.stream(), slow, tokenizer.num_ids)
        assert tokenizer.decode(tokenizer.encode("still alive")) == "still alive"
