"""generation_config.json as published: every field is followed, said not to be done, or of no effect."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import GenerationConfig

from moeinf.sampling.generation_config import not_done
from moeinf.sampling.params import SamplingParams, from_generation_config, resolve_params
from moeinf.text.vocabulary import end_ids
from moeinf.turn_ends import ENDS_MESSAGE, TURN_ENDS
from tests.support.text_models import byte_level_tokenizer
from tests.support.true_configs import PUBLISHED

FOLLOWED = {
    *("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "do_sample", "eos_token_id"),
    *("min_new_tokens", "min_length", "max_new_tokens", "max_length", "no_repeat_ngram_size"),
    *("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias"),
}
FOLLOWED_WITH_AN_ENCODER = {"num_beams", "forced_bos_token_id"}
# Of a beam search, and of what a decoder begins with that has an encoder.
OF_NO_DECODER_ALONE = {"early_stopping", "length_penalty", "decoder_start_token_id"}
NOT_BY_A_BEAM_SEARCH = {
    *("do_sample", "repetition_penalty", "no_repeat_ngram_size", "min_length", "min_new_tokens", "bad_words_ids"),
    *("suppress_tokens", "begin_suppress_tokens", "sequence_bias"),
}
NO_EFFECT = {
    # The beginning of a prompt is the tokenizer's and the template's; nothing is padded.
    *("bos_token_id", "pad_token_id"),
    *("transformers_version", "_from_model_config"),
    # What generate() returns, and how it computes the same tokens.
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"),
    *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "low_memory", "prefill_chunk_size"),
    *("compile_config", "disable_compile", "continuous_batching_config"),
    # Tokens guessed ahead, which are kept where the model says the same.
    *("use_mtp", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule"),
    *("assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size"),
    *("assistant_early_exit", "assistant_lookbehind", "target_lookbehind"),
    *("assistant_ensemble_weight", "speculation_type"),
    # Probabilities are normalised in any case; logits that are not finite are an error.
    *("renormalize_logits", "remove_invalid_values"),
}
SAMPLED = {  # options that differ from the defaults
    "dbrx-instruct": {},
    "glm-4.5": {},
    "gpt-oss-20b": {},
    "granite-3.1-1b-a400m-instruct": {},
    "hunyuan-a13b": {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05},
    "kimi-k2": {},
    "ling-2.0": {},
}
ENDS = {
    "dbrx-instruct": [100257, 100279],
    "glm-4.5": [151329, 151336, 151338],
    "gpt-oss-20b": [199999, 200002],
    "granite-3.1-1b-a400m-instruct": [0],
    "hunyuan-a13b": [127960, 127967],
    "kimi-k2": [163585, 163586],
    "ling-2.0": [156892, 156895],
}


def read(name: str, file: str) -> dict[str, Any]:
    path = PUBLISHED / name / file
    value: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return value


FORMS: dict[str, Any] = {  # values of the form that transformers takes, of fields that are lists
    "suppress_tokens": [1],
    "begin_suppress_tokens": [1],
    "bad_words_ids": [[1]],
    "sequence_bias": [[[1], 0.5]],
}


def is_said(name: str, *, encoder: bool = False, num_beams: int = 1) -> bool:
    lines = not_done({name: FORMS.get(name, 7)}, encoder=encoder, num_beams=num_beams)
    return any(f" {name} = " in line for line in lines)


def all_fields() -> dict[str, Any]:
    make: Any = GenerationConfig  # which has no types
    fields: dict[str, Any] = make().to_dict()
    return fields


def test_every_field_that_transformers_knows_has_its_place() -> None:
    followed = FOLLOWED | OF_NO_DECODER_ALONE | NO_EFFECT
    assert {name for name in all_fields() if not is_said(name)} == followed & set(all_fields())
    with_encoder = followed | FOLLOWED_WITH_AN_ENCODER
    assert {name for name in all_fields() if not is_said(name, encoder=True)} == with_encoder & set(all_fields())
    searched = with_encoder - NOT_BY_A_BEAM_SEARCH - {"temperature", "top_k", "top_p", "min_p"}
    unsaid = {name for name in all_fields() if not is_said(name, encoder=True, num_beams=4)}
    assert unsaid - {"temperature", "top_k", "top_p", "min_p"} == searched & set(all_fields())
    assert not not_done(all_fields(), encoder=False) and not not_done(all_fields(), encoder=True, num_beams=4)


def test_what_a_checkpoint_asks_for_and_does_not_get_is_said() -> None:
    asked = {"typical_p": 0.9, "min_length": 0, "num_beams": 4, "top_k": 5}
    assert not_done(asked, encoder=True) == ["the checkpoint asks for typical_p = 0.9, which is not done"]
    assert not_done(asked, encoder=False)[1:] == ["the checkpoint asks for num_beams = 4, which is not done"]
    assert not not_done({"num_beams": 1, "temperature": 0.5}, encoder=False)
    for name in ("repetition_penalty", "presence_penalty"):
        said = not_done({name: 1.2, "num_beams": 4}, encoder=True, num_beams=4)
        assert said == [f"the checkpoint asks for {name} = 1.2, which is not done"]


def test_what_transformers_does_not_know_is_followed_or_said() -> None:
    asked = {"presence_penalty": 1.5, "frequency_penalty": 0.5, "xtc_probability": 0.3, "mirostat": 0}
    assert resolve_params({}, asked) == SamplingParams(presence_penalty=1.5, frequency_penalty=0.5)
    assert resolve_params({"presence_penalty": 0.0}, asked) == SamplingParams(frequency_penalty=0.5)
    assert not_done(asked, encoder=False) == ["the checkpoint asks for xtc_probability = 0.3, which is not done"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("suppress_tokens", "all"),
        ("suppress_tokens", [1, -2]),
        ("begin_suppress_tokens", [1.5]),
        ("bad_words_ids", [1, 2]),
        ("bad_words_ids", [[]]),
        ("sequence_bias", {"1": 0.5}),
        ("sequence_bias", [[[1], "much"]]),
        ("sequence_bias", [[[], 1.0]]),
        ("sequence_bias", [[[1], float("inf")]]),
        ("no_repeat_ngram_size", -1),
        ("min_length", True),
    ],
)
def test_a_list_of_another_form_is_said_and_left_out(name: str, value: object) -> None:
    assert not_done({name: value}, encoder=False) == [f"the checkpoint asks for {name} = {value!r}, which is not done"]
    assert resolve_params({}, {name: value}) == SamplingParams()


@pytest.mark.parametrize("token", sorted({*TURN_ENDS, ENDS_MESSAGE}))
def test_an_end_of_a_turn_ends_answers_that_no_config_lists(token: str) -> None:
    """As of Gemma 4 without its generation_config.json."""
    tokenizer = byte_level_tokenizer(["<eos>", token])
    ends = end_ids(tokenizer, {"eos_token": "<eos>"}, {"eos_token_id": 7}, {})
    assert set(ends) == {7, tokenizer.token_to_id("<eos>"), tokenizer.token_to_id(token)}


def test_all_that_are_published_are_known() -> None:
    assert {path.parent.name for path in PUBLISHED.glob("*/generation_config.json")} == set(SAMPLED) == set(ENDS)


@pytest.mark.parametrize("name", SAMPLED)
def test_a_published_generation_config_is_followed(name: str) -> None:
    generation, model = read(name, "generation_config.json"), read(name, "config.json")
    assert from_generation_config(generation) == SAMPLED[name]
    assert SamplingParams(**from_generation_config(generation))
    assert not not_done(generation, encoder=False)
    assert end_ids(byte_level_tokenizer([]), {}, model, generation) == ENDS[name]
    limit = generation.pop("max_length", None)  # which is no limit where it is all that the model can read
    assert limit is None or limit >= model["max_position_embeddings"]
    assert generation.keys() <= FOLLOWED | NO_EFFECT
