"""Schemas that programs write with keywords which llguidance refuses are held as they are meant."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from llguidance import LLMatcher, LLTokenizer

from moeinf.text.forms.languages import GrammarError, expression
from moeinf.types import JsonObject

NUMBER = {"type": "number"}
CAT = {"type": "object", "properties": {"kind": {"const": "cat", "default": "cat"}, "n": NUMBER}, "required": ["n"]}
DOG = {"type": "object", "properties": {"kind": {"const": "dog", "default": "dog"}}}


def takes(schema: JsonObject, text: str) -> bool:
    grammar = LLMatcher.grammar_from_lark(f"start: {expression({'schema': json.dumps(schema)})}")
    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, grammar)
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer.tokenize_bytes(text.encode())
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"propertyNames": {"type": "string"}, "additionalProperties": NUMBER}, ['{"a":1}'], ['{"a":"x"}']),
        ({"propertyNames": True, "additionalProperties": NUMBER}, ['{"a":1}'], ['{"a":"x"}']),
        (
            {
                "propertyNames": {"type": "string", "enum": ["a", "b"], "description": "d"},
                "additionalProperties": NUMBER,
                "required": ["a", "b"],
            },
            ['{"a":1,"b":2}'],
            ['{"a":1}', '{"a":1,"b":2,"c":3}', '{"a":1,"b":"x"}'],
        ),
        ({"propertyNames": {"enum": ["a"]}, "properties": {"a": NUMBER, "b": NUMBER}}, ['{"a":1}'], ['{"b":1}']),
        ({"propertyNames": {"pattern": "^a"}, "additionalProperties": NUMBER}, ['{"ab":1}'], ['{"b":1}', '{"a":"x"}']),
        ({"properties": {"a": NUMBER}, "unevaluatedProperties": False}, ['{"a":1}'], ['{"b":1}']),
        ({"properties": {"a": NUMBER}, "unevaluatedProperties": True}, ['{"a":1}', '{"b":1}'], ['{"a":"x"}']),
        ({"properties": {"a": {"not": {}}, "b": NUMBER}}, ['{"b":1}'], ['{"a":1}']),
        ({"properties": {"a": {"type": "array", "uniqueItems": False}}}, ['{"a":[1,1]}'], ['{"a":1}']),
    ],
)
def test_an_object_is_held_as_it_is_meant(schema: JsonObject, valid: Sequence[str], invalid: Sequence[str]) -> None:
    for text in [*valid, *invalid]:
        assert takes({"type": "object", **schema}, text) == (text in valid), text


def test_alternatives_are_told_apart_by_a_property_with_a_default() -> None:
    parts = {"$defs": {"cat": CAT, "dog": DOG}}
    schema = {"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}], "discriminator": {"propertyName": "kind"}}
    for text, valid in (
        ('{"kind":"cat","n":1}', True),
        ('{"kind":"dog"}', True),
        ('{"kind":"cat"}', False),
        ('{"n":1}', False),
    ):
        assert takes(parts | schema, text) is valid, text


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "propertyNames": {"maxLength": 3}},
        {"type": "object", "propertyNames": {"pattern": "^a"}, "properties": {"a": NUMBER}},
        {"type": "object", "unevaluatedProperties": False, "allOf": [{"properties": {"a": NUMBER}}]},
        {"type": "array", "uniqueItems": True},
    ],
)
def test_what_cannot_be_said_otherwise_is_left_to_be_refused(schema: JsonObject) -> None:
    with pytest.raises(AssertionError, match="Unimplemented keys"):
        takes(schema, "{}")


def test_what_nothing_matches_is_said() -> None:
    with pytest.raises(GrammarError, match="no JSON matches"):
        takes({"not": {}}, "1")
