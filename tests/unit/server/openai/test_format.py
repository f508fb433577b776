"""One form of an answer, by whichever of its many names a client asks for it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from moeinf.errors import MoeinfError
from moeinf.sampling.constraint import Language
from moeinf.server.body import checked
from moeinf.server.openai.requests import ChatRequest, CompletionRequest
from moeinf.server.openai.response_format import format_of

SCHEMA = {"type": "object", "properties": {"a": {"enum": [None, 1]}}}
TEXT, WORDS = json.dumps(SCHEMA), ["yes", "no", 'say "no"']
GBNF, LARK = 'root ::= "yes" | "no"', 'start: "yes" | "no"'
RESPONSE, STRUCTURED = "response_format", "structured_outputs"
SAME: list[tuple[Any, list[dict[str, Any]]]] = [
    (None, [{}, {RESPONSE: {"type": "text"}}, {RESPONSE: {}}, {STRUCTURED: {}}, {STRUCTURED: {"json_object": False}}]),
    ("json", [{RESPONSE: {"type": "json_object"}}, {STRUCTURED: {"json_object": True}}]),
    (
        SCHEMA,
        [
            {RESPONSE: {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": False}}},
            {RESPONSE: {"type": "json_schema", "schema": SCHEMA}},
            {RESPONSE: {"type": "json_object", "schema": SCHEMA}},
            {RESPONSE: {"type": "json", "value": SCHEMA}},
            {STRUCTURED: {"json": SCHEMA}},
            {STRUCTURED: {"json": TEXT, "disable_fallback": True}},
            {"guided_json": SCHEMA},
            {"guided_json": TEXT},
            {"json_schema": SCHEMA},
            {"json_schema": TEXT},
        ],
    ),
    (
        Language("regex", "[0-9]+"),
        [
            {"guided_regex": "[0-9]+"},
            {"regex": "[0-9]+"},
            {STRUCTURED: {"regex": "[0-9]+"}},
            {RESPONSE: {"type": "regex", "value": "[0-9]+"}},
            {RESPONSE: {"type": "regex", "pattern": "[0-9]+"}},
        ],
    ),
    (Language("choice", json.dumps(WORDS)), [{"guided_choice": WORDS}, {STRUCTURED: {"choice": WORDS}}]),
    (
        Language("gbnf", GBNF),
        [
            {"grammar": GBNF},
            {"ebnf": GBNF},
            {"guided_grammar": GBNF},
            {STRUCTURED: {"grammar": GBNF}},
            {RESPONSE: {"type": "grammar", "grammar": GBNF}},
        ],
    ),
    (Language("lark", LARK), [{"grammar": LARK}, {"guided_grammar": LARK}, {STRUCTURED: {"grammar": LARK}}]),
]


def read(kind: Any, given: dict[str, Any]) -> Any:
    asked = {"prompt": "a"} if kind is CompletionRequest else {"messages": [{"role": "user", "content": "a"}]}
    return format_of(msgspec.convert(checked({"model": "m", **asked, **given}, kind) | {}, kind))


@pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest])
@pytest.mark.parametrize(("form", "ways"), SAME)
def test_all_names_of_a_form_mean_it(kind: Any, form: Any, ways: list[dict[str, Any]]) -> None:
    for given in ways:
        assert read(kind, given) == form, given


@pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest])
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"guided_regex": "a", "grammar": GBNF}, "guided_regex and grammar"),
        ({"guided_json": SCHEMA, RESPONSE: {"type": "json_object"}}, "response_format and guided_json"),
        ({STRUCTURED: {"regex": "a", "choice": ["a"]}}, "regex and choice"),
        ({STRUCTURED: {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({RESPONSE: {"type": "structural_tag", "structures": []}}, "structural_tag"),
        ({RESPONSE: {"type": "json_schema"}}, "response_format.json_schema"),
        ({RESPONSE: {"type": ["text"]}}, "response_format"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[]"}, "guided_json"),
        ({"json_schema": "5"}, "json_schema"),
        ({"guided_choice": []}, "choices"),
        ({"guided_choice": ["a", 5]}, "choices"),
        ({"guided_choice": ["a", ""]}, "choices"),
        ({"regex": ""}, "regex"),
        ({"grammar": " "}, "grammar"),
    ],
)
def test_what_is_no_form_is_refused_by_name(kind: Any, given: dict[str, Any], named: str) -> None:
    with pytest.raises(MoeinfError, match=named):
        read(kind, given)
