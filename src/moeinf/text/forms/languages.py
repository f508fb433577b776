"""Languages that an answer may have to be in, as rules of Lark in which all text is letters, and never a token."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher, gbnf_to_lark, regex_to_lark

from moeinf.errors import in_a_line
from moeinf.text.forms.schema_words import in_known_words

# In one place: as people indent. How much there may be in all says json_space.py.
_SPACE = {"x-guidance": {"whitespace_pattern": r"( {1,2}|\n[ \t]{0,32})"}}
_MOST_REMAINDERS = 30_000  # half a second
# Keywords whose values are no schemas, and those whose values are schemas by names of any kind.
_DATA = ("const", "enum", "default", "examples")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
# Of a Lark grammar: texts, comments and regular expressions, in which a < is a letter.
_LETTERS = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/(?:\\.|[^/\\\n])+/')


class GrammarError(Exception):
    """A form that cannot be followed; says why."""


def expression(form: Mapping[str, str]) -> str:
    """What a form holds beside its prefix and suffix, which tells how it is said. Raises GrammarError."""
    kind = next(name for name in form if name not in ("prefix", "suffix"))
    try:
        return _KINDS[kind](form[kind])
    except RecursionError as error:
        raise GrammarError("it is nested too deeply") from error


def _schema(text: str) -> str:
    held = _held(json.loads(text))
    if held is False:
        raise GrammarError("no JSON matches the schema")
    return f"%json {json.dumps({**({} if held is True else held), **_SPACE})}"


def _held(schema: Any) -> Any:
    """A schema without each `format` that cannot be held: JSON Schema has it for a comment (2020-12, 7.2.1).

    Raises GrammarError for a multipleOf that takes minutes: it needs a state for each remainder.
    """
    if isinstance(schema, list):
        return [_held(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    multiple = schema.get("multipleOf")
    is_number = isinstance(multiple, int | float) and not isinstance(multiple, bool)
    if is_number and _num_remainders(float(multiple or 0)) > _MOST_REMAINDERS:
        raise GrammarError(f"multipleOf cannot be {multiple}: only multiples of small numbers can be held")
    known = in_known_words(schema)
    if not isinstance(known, dict):
        return known
    return {
        name: _held_value(name, value)
        for name, value in known.items()
        if name != "format" or not isinstance(value, str) or _holds_format(value)
    }


def _held_value(keyword: str, value: Any) -> Any:
    if keyword in _DATA:
        return value
    if keyword in _NAMED and isinstance(value, dict):
        return {name: _held(schema) for name, schema in value.items()}
    return _held(value)


@lru_cache(maxsize=100)
def _holds_format(name: str) -> bool:
    grammar = LLMatcher.grammar_from_json_schema(json.dumps({"type": "string", "format": name}))
    return not LLMatcher.validate_grammar(grammar, None)


def _num_remainders(multiple: float) -> int:
    """Of a number that is written in decimals."""
    left = int("".join(map(str, Decimal(str(multiple)).as_tuple().digits)))
    for factor in (2, 5):  # which the last digits tell
        while left and left % factor == 0:
            left //= factor
    return left


def _choice(text: str) -> str:
    return "(" + " | ".join(json.dumps(each, ensure_ascii=False) for each in json.loads(text)) + ")"


def _regex(text: str) -> str:
    return f"/{regex_to_lark(text, '')}/"


def _lark(text: str) -> str:
    if "<" in _LETTERS.sub("", text):
        raise GrammarError("a grammar of a request names no tokens: write text in quotes")
    return f"%lark {{\n{text}\n}}"


def _gbnf(text: str) -> str:
    try:
        rules = gbnf_to_lark.gbnf_to_lark(text)
    except RecursionError:
        raise
    except Exception as error:  # it raises these themselves, such as for a rule that is missing
        raise GrammarError(f"the grammar cannot be read: {in_a_line(error)}") from error
    return _lark(rules)


_KINDS: Mapping[str, Callable[[str], str]] = {
    "schema": _schema,  # JSON of it
    "choice": _choice,  # one of a JSON list of texts
    "regex": _regex,  # the whole answer matches
    "lark": _lark,  # with llguidance's additions, but for tokens
    "gbnf": _gbnf,  # llama.cpp's grammars
}
