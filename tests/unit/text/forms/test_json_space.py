"""JSON holds a bounded amount of space between its texts, however much a model likes to write it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from moeinf.sampling.constraint import AnswerFormat, FramedJson, held_to
from moeinf.text.forms.json_space import AnswerStart, JsonSpace, Place, SpaceTokens, space_between, token_name
from moeinf.text.tokenizer import TextStream, Tokenizer
from tests.support.any_json import ANYTHING
from tests.support.text_models import byte_level_tokenizer

MakeFolder = Callable[..., Path]
MOST = 32 + 33  # that may be written before a limit is seen: what every answer may hold, and one place of a line break


BETWEEN: Place = "between"


def num_space(text: str) -> int:
    return space_between(text.encode(), "between")[0]


@settings(max_examples=200, deadline=None)
@given(ANYTHING, st.sampled_from([None, 0, 1, 4, "\t"]), st.data())
def test_space_between_texts_is_counted_whatever_the_tokens(value: Any, indent: int | str | None, data: Any) -> None:
    ascii_alone = data.draw(st.booleans())
    written = json.dumps(value, indent=indent, ensure_ascii=ascii_alone)
    compact = json.dumps(value, separators=(",", ":"), ensure_ascii=ascii_alone)
    raw, counted, place, at = written.encode("utf-8", "surrogatepass"), 0, BETWEEN, 0
    while at < len(raw):
        size = data.draw(st.integers(1, 9))
        more, place = space_between(raw[at : at + size], place)
        counted, at = counted + more, at + size
    assert counted == len(written) - len(compact) and place == BETWEEN


INTEGER, FLAG = {"type": "integer", "minimum": 10, "maximum": 99}, {"type": "boolean"}


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


SCHEMAS: list[dict[str, Any]] = [
    object_of(),
    object_of(a=INTEGER, b=FLAG, c={"enum": ["x y", " "]}),
    object_of(a=object_of(b=object_of(c=object_of(d=object_of(e=INTEGER))))),
    object_of(a={"type": "array", "items": INTEGER, "minItems": 30, "maxItems": 30}),
    {"type": "array", "items": object_of(a=FLAG), "minItems": 9, "maxItems": 9},
    {
        "type": "array",
        "items": {"type": "array", "items": FLAG, "minItems": 2, "maxItems": 2},
        "maxItems": 9,
        "minItems": 9,
    },
    {"anyOf": [{"type": "null"}, object_of(a=INTEGER)]},
]


def written_by_a_lover_of_space(tokenizer: Tokenizer, stream: TextStream, format: AnswerFormat, lead: str = "") -> str:
    """The longest answer in a format, of the tokens with most space."""
    constraint = held_to(stream, format, tokenizer.num_ids)
    letters = tokenizer.token_bytes(range(tokenizer.num_ids))
    ids = tokenizer.encode(lead, control_tokens=True, bos=False)
    for token in ids:
        assert token in constraint.allowed().tolist()
        constraint.accept(token)
    while not constraint.complete and len(ids) < 3000:
        allowed = [i for i in constraint.allowed().tolist() if i not in tokenizer.eos_ids]
        if not allowed:
            break
        ids.append(max(allowed, key=lambda i: (sum(letters[i].count(s) for s in (b" ", b"\n", b"\t")), i)))
        constraint.accept(ids[-1])
    return tokenizer.decode(ids, skip_special=False)


@pytest.fixture
def tokenizer(model_folder: MakeFolder) -> Iterator[Tokenizer]:
    library = byte_level_tokenizer()
    library.add_tokens(["    ", "\n\n", "{\n  ", '",\n    "', ":  ", " \t "])
    library.add_tokens([AddedToken(tag, normalized=False) for tag in ("<think>", "</think>", "<tool_call>")])
    template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}</think>{% for t in tools or [] %}<tool_call>{% endfor %}"
    )
    with Tokenizer(model_folder(template, library)) as made:
        yield made


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_a_model_that_loves_space_ends_its_json(tokenizer: Tokenizer, schema: Mapping[str, Any]) -> None:
    answer = written_by_a_lover_of_space(tokenizer, tokenizer.stream(), schema)
    json.loads(answer)
    assert 0 < num_space(answer) <= MOST + len(answer) - num_space(answer)


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("lead", ["", '<think>a "quote" ' + " " * 200 + '{"</think>\n', "<think></think>"])
@pytest.mark.parametrize("tools", [(), (TOOL,)])
def test_a_thought_before_it_does_not_count(
    tokenizer: Tokenizer, lead: str, tools: Sequence[Mapping[str, Any]]
) -> None:
    stream = tokenizer.stream(chat=True, tools=tools)
    answer = written_by_a_lover_of_space(tokenizer, stream, SCHEMAS[3], lead).removeprefix(lead)
    json.loads(answer)
    assert 32 <= num_space(answer) <= MOST + len(answer) - num_space(answer)


def test_what_stands_around_json_is_written_whole(tokenizer: Tokenizer) -> None:
    forms = [FramedJson(SCHEMAS[1], '<call> {"name": "f", "arguments": ', " \n \n " * 20 + "}</call>")]
    answer = written_by_a_lover_of_space(tokenizer, tokenizer.stream(), forms)
    assert answer.startswith('<call> {"name": "f", "arguments": {') and answer.endswith(" \n \n }</call>")


STARTS = {
    "alone": (AnswerStart(), [b"  1"], 2),
    "in a thought": (AnswerStart(b"", b"</t>"), [b"  <", b"/t", b"> 1 "], 2),
    "with a thought": (AnswerStart(b"<t>", b"</t>"), [b"<", b"t> a", b" </t>", b" 1"], 1),
    "without one": (AnswerStart(b"<t>", b"</t>"), [b"<", b"s> a"], 1),
    "a token": (AnswerStart(token_name(1), token_name(2)), [token_name(1), b'" " </2>', token_name(2), b" 1"], 1),
    "no call": (AnswerStart(calls=(b"<call>",)), [b" \n<", b"call", b" >  "], 5),
}


@pytest.mark.parametrize("name", STARTS)
def test_the_json_begins_behind_its_lead(name: str) -> None:
    start, parts, counted = STARTS[name]
    space = JsonSpace(start)
    for part in parts:
        space.take(part)
    assert space._num_space == counted and not space.spent


def test_space_in_a_call_is_free() -> None:
    space = JsonSpace(AnswerStart(calls=(b"<call>",)))
    for part in (b" <", b"call>", b" " * 500):
        space.take(part)
    assert not space.spent


def test_tokens_are_left_out_for_the_space_that_they_would_write() -> None:
    letters = [b"a", b" a", b'"', b'" ', b'", "', b'\\" ', b"\\", b"\n", b"{ "]
    tokens, every = SpaceTokens(letters), b"\xff\x01"

    def left(place: Place) -> list[int]:
        mask = tokens.without(every, place)
        return [i for i in range(len(letters)) if mask[i >> 3] >> (i & 7) & 1]

    assert left("between") == [0, 2, 3, 4, 5, 6]
    assert left("text") == [0, 1, 2, 5, 6, 7, 8]
    assert left("escape") == [0, 1, 2, 3, 4, 6, 7, 8]
    assert tokens.without(b"\x80\x00", "between") == b"\x80\x00", "where nothing else may come"


def test_all_places_are_told_apart() -> None:
    for first, second in itertools.product(['"', "\\", "x", " "], repeat=2):
        whole = space_between((first + second).encode(), "text")
        count, place = space_between(first.encode(), "text")
        more, place = space_between(second.encode(), place)
        assert whole == (count + more, place)
