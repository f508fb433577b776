"""generation_config.json as published: every field is followed, said not to be done, or of no effect."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import GenerationConfig

from moeinf.sampling.params import SamplingParams, from_generation_config, not_done
from moeinf.text.vocabulary import end_ids
from tests.support.text_models import byte_level_tokenizer
from tests.support.true_configs import PUBLISHED

FOLLOWED = {"temperature", "top_k", "top_p", "min_p", "repetition_penalty", "do_sample", "eos_token_id"}
# By models with an encoder: beam search, what an answer begins with, and how long it may get.
FOLLOWED_BY_TRANSLATORS = {
    "num_beams",
    "early_stopping",
    "length_penalty",
    "forced_bos_token_id",
    "decoder_start_token_id",
    "max_length",
    "max_new_tokens",
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
    "hunyuan-a13b": {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repeat_penalty": 1.05},
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


def is_said(name: str) -> bool:
    return any(f" {name} = " in line for line in not_done({name: "something"}, beams=False))


def test_every_field_that_transformers_knows_has_its_place() -> None:
    make: Any = GenerationConfig  # which has no types
    asks_nothing = make().to_dict()
    known = set(asks_nothing)
    elsewhere = FOLLOWED | FOLLOWED_BY_TRANSLATORS | NO_EFFECT
    assert {name for name in known - elsewhere if not is_said(name)} == set()
    assert {name for name in FOLLOWED | NO_EFFECT if is_said(name)} == set()
    assert not not_done(asks_nothing, beams=False)


def test_all_that_are_published_are_known() -> None:
    assert {path.parent.name for path in PUBLISHED.glob("*/generation_config.json")} == set(SAMPLED) == set(ENDS)


@pytest.mark.parametrize("name", SAMPLED)
def test_a_published_generation_config_is_followed(name: str) -> None:
    generation, model = read(name, "generation_config.json"), read(name, "config.json")
    assert from_generation_config(generation) == SAMPLED[name]
    assert SamplingParams(**from_generation_config(generation))
    assert not not_done(generation, beams=False)
    assert end_ids(byte_level_tokenizer([]), {}, model, generation) == ENDS[name]
    limit = generation.pop("max_length", None)  # which is no limit where it is all that the model can read
    assert limit is None or limit >= model["max_position_embeddings"]
    assert generation.keys() <= FOLLOWED | NO_EFFECT
