"""Answers of a given form, and how probable their tokens were, on the embedded model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.completion import Hooks
from moeinf.engine.model import Model
from moeinf.errors import UsageError
from moeinf.sampling.constraint import FramedJson
from moeinf.sampling.logprobs import ChosenToken
from moeinf.store.library import StoredModel

PROMPT = "Once upon a time there was a fisherman. He is described in JSON as"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 20, "maximum": 99},
        "kind": {"enum": ["old man", "young man"]},
        "fish": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "kind", "fish"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model(demo: StoredModel) -> Iterator[Model]:
    with Model(demo, RuntimeConfig.of(threads=1)) as opened:
        yield opened


@pytest.mark.parametrize("options", [{"temperature": 0}, {"seed": 1}, {"seed": 2, "top_k": 1}, {"seed": 3, "top_k": 0}])
def test_an_answer_is_valid_and_ends_by_itself(model: Model, options: dict[str, Any]) -> None:
    answer = model.generate(PROMPT, model.params(num_predict=400, **options), format=SCHEMA)
    assert answer.finish_reason == "stop" and answer.cut_by is None
    jsonschema_rs.validator_for(SCHEMA).validate(json.loads(answer.text))
    assert len(answer.stats.token_s) == len(answer.token_ids) - 1  # no pass behind the last brace


def test_the_tokens_are_the_same_for_every_cache_size(demo: StoredModel) -> None:
    found = []
    for cache in ("8%", "40%", "100%"):
        with Model(demo, RuntimeConfig.of(expert_cache=cache)) as sized:
            found.append(sized.generate(PROMPT, sized.params(seed=7, num_predict=60), format="json").token_ids)
    assert found[0] == found[1] == found[2]


def test_json_is_cut_where_the_tokens_are_used_up_and_by_stop_strings(model: Model) -> None:
    cut = model.generate(PROMPT, model.params(temperature=0, num_predict=3), format=SCHEMA)
    assert (cut.finish_reason, cut.cut_by, len(cut.token_ids)) == ("length", "num_predict", 3)
    stopped = model.generate(PROMPT, model.params(temperature=0, stop=('"age',)), format=SCHEMA)
    assert stopped.finish_reason == "stop" and stopped.text.rstrip().endswith(",")


def test_an_answer_of_a_form_leaves_the_next_one_free(model: Model) -> None:
    params = model.params(temperature=0, num_predict=8)
    before = model.generate(PROMPT, params).token_ids
    forms = [FramedJson(SCHEMA, "<tool>", "</tool>")]
    framed = model.generate(PROMPT, model.params(temperature=0), format=forms).text
    assert framed.startswith("<tool>{") and framed.endswith("}</tool>")
    answer = model.stream(PROMPT, model.params(temperature=0), format=SCHEMA)
    next(answer)
    del answer  # by a caller who reads no further
    assert model.generate(PROMPT, params).token_ids == before


def test_what_is_no_schema_is_refused_before_anything_is_computed(model: Model) -> None:
    done = model.last
    with pytest.raises(UsageError, match="Unimplemented keys"):
        model.stream(PROMPT, format={"not": {"type": "object"}})
    assert model.last is done


@pytest.mark.parametrize("format", [None, SCHEMA])
def test_each_token_is_reported_with_its_probability_before_its_text(
    model: Model, format: dict[str, Any] | None
) -> None:
    told: list[ChosenToken | str] = []
    params = model.params(temperature=0, num_predict=12, top_logprobs=3)
    for piece in model.stream(PROMPT, params, format=format, hooks=Hooks(on_token=told.append)):
        told.append(piece)
    assert model.last is not None
    chosen = [each for each in told if isinstance(each, ChosenToken)]
    assert [each.token_id for each in chosen] == model.last.token_ids and isinstance(told[0], ChosenToken)
    assert all(len(each.top) == 3 and each.logprob < 0 for each in chosen)
    if format is None:
        assert all(each.top[0] == (each.token_id, each.logprob) for each in chosen)  # greedy
        assert b"".join(model.tokenizer.token_bytes(model.last.token_ids)).decode() == model.last.text


def test_nothing_is_reported_unasked(model: Model) -> None:
    told: list[ChosenToken] = []
    model.generate(PROMPT, model.params(temperature=0, num_predict=4), hooks=Hooks(on_token=told.append))
    assert told == []
