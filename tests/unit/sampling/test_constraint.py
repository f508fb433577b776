"""Whatever the logits are, an answer of a format parses and is valid, unless it was cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf.errors import TextError, UsageError
from moeinf.sampling.constraint import AnswerFormat, FramedJson, held_to
from moeinf.sampling.params import SamplingParams
from moeinf.sampling.sampler import Sampler
from moeinf.text.tokenizer import Tokenizer
from tests.support.text_models import write_text_model

MOST_TOKENS = 600
PARAMS = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=1, top_k=0, top_p=1),
    SamplingParams(temperature=2, top_k=3, top_p=0.5, min_p=0.1, repeat_penalty=1.5),
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokenizer]:
    with Tokenizer(write_text_model(tmp_path_factory.mktemp("model"))) as tokenizer:
        yield tokenizer


def answer(tokenizer: Tokenizer, format: AnswerFormat, params: SamplingParams, seed: int) -> tuple[str, bool]:
    """An answer of a model with random logits, and whether it came to its end."""
    random = np.random.default_rng(seed)
    closing = [i for text in ('"', "}", "]", ",", ":") for i in tokenizer.encode(text, bos=False)]
    stream, tokens = tokenizer.stream(), list[int]()
    constraint = held_to(stream, format, tokenizer.num_ids)
    sampler = Sampler(params, num_ids=tokenizer.num_ids, constraint=constraint)
    while not constraint.complete and len(tokens) < MOST_TOKENS:
        logits = random.standard_normal(tokenizer.num_ids).astype(np.float32)
        logits[closing] += 3  # or texts would hardly ever end
        token = sampler.sample(logits, tokens)
        if token in tokenizer.eos_ids:
            break
        assert token not in tokenizer.special_ids
        tokens.append(token)
    stream.flush()
    return b"".join(tokenizer.token_bytes(tokens)).decode(), len(tokens) < MOST_TOKENS


NAMES = st.sampled_from(["a", "b", "the name", 'q"', "é"])
LEAVES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "string", "maxLength": 5}, {"const": {"x": [1]}}]),
    st.builds(lambda low: {"type": "integer", "minimum": low, "maximum": low + 30}, st.integers(-99, 99)),
    st.builds(lambda high: {"type": "number", "minimum": -1.5, "maximum": high}, st.integers(0, 99)),
    st.builds(lambda values: {"enum": values}, st.lists(st.sampled_from(["x", 1, None, "a b"]), min_size=1)),
)


def _deeper(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        st.builds(
            lambda fields, num: {
                "type": "object",
                "properties": fields,
                "required": list(fields)[:num],
                "additionalProperties": False,
            },
            st.dictionaries(NAMES, inner, max_size=3),
            st.integers(0, 3),
        ),
        st.builds(lambda items, most: {"type": "array", "items": items, "maxItems": most}, inner, st.integers(0, 3)),
        st.builds(lambda one, other: {"anyOf": [one, other]}, inner, inner),
    )


SCHEMAS = st.recursive(LEAVES, _deeper, max_leaves=6)


@settings(max_examples=60, deadline=None)
@given(SCHEMAS, st.sampled_from(PARAMS), st.integers(0, 2**31))
def test_an_answer_is_valid_for_its_schema(
    tokenizer: Tokenizer, schema: dict[str, Any], params: SamplingParams, seed: int
) -> None:
    text, finished = answer(tokenizer, schema, params, seed)
    if finished:
        jsonschema_rs.validator_for(schema).validate(json.loads(text))


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "free", "narrow"])
def test_json_is_an_object(tokenizer: Tokenizer, params: SamplingParams) -> None:
    answers = [answer(tokenizer, "json", params, seed) for seed in range(8)]
    assert sum(finished for _, finished in answers) >= 2
    assert all(isinstance(json.loads(text), dict) for text, finished in answers if finished)


def test_greedy_takes_the_likeliest_of_the_tokens_that_are_allowed(tokenizer: Tokenizer) -> None:
    constraint = held_to(tokenizer.stream(), {"enum": ["ab", "cd"]}, tokenizer.num_ids)
    sampler = Sampler(SamplingParams(temperature=0, top_k=1), num_ids=tokenizer.num_ids, constraint=constraint)
    logits = np.zeros(tokenizer.num_ids, np.float32)
    for text, value in (('"', 1), ("c", 2), ("a", 1), ("x", 9), ("b", 1), ("d", 1)):
        logits[tokenizer.encode(text, bos=False)] = value
    tokens = list[int]()
    while not constraint.complete:
        tokens.append(sampler.sample(logits, tokens))
    assert tokenizer.decode(tokens) == '"cd"'


def test_an_answer_may_end_only_where_its_grammar_may(tokenizer: Tokenizer) -> None:
    constraint = held_to(tokenizer.stream(), {"type": "integer"}, tokenizer.num_ids)
    [digit] = tokenizer.encode("7", bos=False)
    assert not tokenizer.eos_ids & set(constraint.allowed().tolist())
    constraint.accept(digit)
    assert tokenizer.eos_ids <= set(constraint.allowed().tolist()) and not constraint.complete


def test_json_between_texts_has_both_and_chooses_one_of_several_forms(tokenizer: Tokenizer) -> None:
    empty = {"type": "object", "additionalProperties": False}
    forms = [FramedJson(empty, "<|im_start|>call one\n", "<|im_end|>"), FramedJson({"const": 5}, "two: ")]
    constraint = held_to(tokenizer.stream(), forms, tokenizer.num_ids)
    wanted = tokenizer.encode("<|im_start|>call one\n{}<|im_end|>", control_tokens=True, bos=False)
    assert set(tokenizer.decode([i]) for i in constraint.allowed().tolist() if i != wanted[0]) <= {"t", "tw", "two"}
    for token in wanted:
        assert token in constraint.allowed()
        constraint.accept(token)
    assert constraint.complete


@pytest.mark.parametrize(
    ("format", "said"),
    [
        ("yaml", 'must be "json" or a JSON schema'),
        ([], 'must be "json" or a JSON schema'),
        ({"not": {"type": "null"}}, 'Unimplemented keys: \\["not"\\]'),
        ({"type": "string", "format": 3}, "Expected string for 'format'"),
        ({"properties": {"default": {"type": "integer", "multipleOf": 999_983}}}, "only multiples of small numbers"),
        ({"type": "string", "pattern": "(?=a)"}, "look-around"),
        ({"$ref": "#"}, "no JSON matches"),
        ({"$ref": "http://localhost/schema"}, "not present"),
        ({"enum": ["x" * 70_000]}, "at most 64 KiB"),
        ({"const": float("nan")}, "no JSON"),
        ({"const": {1, 2}}, "no JSON"),
        ([FramedJson({})] * 129, "too many"),
    ],
)
def test_what_is_not_supported_is_refused_in_one_line(tokenizer: Tokenizer, format: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        held_to(tokenizer.stream(), format, tokenizer.num_ids)
    assert "\n" not in str(caught.value)
    assert tokenizer.decode(tokenizer.encode("still alive", bos=False)) == "still alive"


@pytest.mark.parametrize("described", [{"type": "string", "format": "colour"}, {"$ref": "#/components/text"}])
def test_a_format_that_is_not_known_is_a_comment(tokenizer: Tokenizer, described: dict[str, str]) -> None:
    schema = {
        "type": "object",
        "properties": {"format": described, "at": {"type": "string", "format": "date"}},
        "required": ["format", "at"],
        "components": {"text": {"type": "string", "format": "colour"}},
    }
    constraint = held_to(tokenizer.stream(), schema, tokenizer.num_ids)
    for token in tokenizer.encode('{"format": "any", "at": "2026-', bos=False):
        assert token in constraint.allowed()
        constraint.accept(token)
    [letter] = tokenizer.encode("x", bos=False)
    assert letter not in constraint.allowed()  # a format that is known holds


@pytest.mark.parametrize("keyword", ["const", "default", "examples"])
def test_data_within_a_schema_are_no_schemas(tokenizer: Tokenizer, keyword: str) -> None:
    data = {"multipleOf": 999_983, "format": "colour"}
    schema = {"type": "object", keyword: [data] if keyword == "examples" else data}
    constraint = held_to(tokenizer.stream(), schema, tokenizer.num_ids)
    for token in tokenizer.encode('{"multipleOf": 999983, "format": "colour"}', bos=False):
        assert token in constraint.allowed()
        constraint.accept(token)


def test_a_grammar_that_fails_on_the_way_is_an_error_and_no_end_of_the_answer(tokenizer: Tokenizer) -> None:
    schema = {"prefixItems": [{"const": 1}, {"$ref": "#/$defs/itself"}], "minItems": 2, "type": "array"}
    schema["$defs"] = {"itself": {"$ref": "#/$defs/itself"}}  # which nothing can match
    constraint = held_to(tokenizer.stream(), schema, tokenizer.num_ids)
    with pytest.raises(TextError, match="the format cannot be followed any further"):
        for token in tokenizer.encode("[1,", bos=False):
            assert token in constraint.allowed() and not constraint.complete
            constraint.accept(token)


@pytest.mark.parametrize("key", ["items", "not", "anyOf"])
def test_a_schema_that_is_nested_deeply_is_refused(tokenizer: Tokenizer, key: str) -> None:
    schema: Any = {}
    for _ in range(5_000):
        schema = {key: [schema] if key == "anyOf" else schema}
    with pytest.raises(UsageError, match=r"no JSON|recursion|deep"):
        held_to(tokenizer.stream(), schema, tokenizer.num_ids)
