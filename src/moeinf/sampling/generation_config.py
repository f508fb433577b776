"""Fields of generation_config.json that change an answer and are not done: each is told where it asks for something."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeinf.sampling.bans import unread
from moeinf.types import JsonMapping

_Asks = Mapping[str, tuple[Any, ...]]  # fields, with the values that ask for nothing
_NOT_DONE: _Asks = {
    "encoder_no_repeat_ngram_size": (None, 0),
    "forced_eos_token_id": (None,),
    "num_beam_groups": (None, 1),
    "diversity_penalty": (None, 0.0),
    "stop_strings": (None, []),
    "top_h": (None,),
    "typical_p": (None, 1.0),
    "epsilon_cutoff": (None, 0.0),
    "eta_cutoff": (None, 0.0),
    "penalty_alpha": (None, 0.0),
    "encoder_repetition_penalty": (None, 1.0),
    "exponential_decay_length_penalty": (None,),
    "guidance_scale": (None, 1.0),
    "token_healing": (None, False),
    "watermarking_config": (None,),
    "dola_layers": (None,),
    "constraints": (None,),
    "force_words_ids": (None,),
    "num_return_sequences": (None, 1),
    "max_time": (None,),
}
_NOT_BY_DECODERS: _Asks = {"num_beams": (None, 1), "forced_bos_token_id": (None,)}
_NOT_BY_A_BEAM_SEARCH: _Asks = {
    "do_sample": (None, False),
    "repetition_penalty": (None, 1.0),
    "presence_penalty": (None, 0.0),
    "frequency_penalty": (None, 0.0),
    "no_repeat_ngram_size": (None, 0),
    "min_length": (None, 0, 1),
    "min_new_tokens": (None, 0),
    "bad_words_ids": (None, []),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "sequence_bias": (None, [], {}),
}
_OBEYED = frozenset(
    {*_NOT_BY_A_BEAM_SEARCH, "temperature", "top_k", "top_p", "min_p", "eos_token_id", "max_new_tokens", "max_length"}
)
_OF_NO_EFFECT = frozenset(
    {
        # The beginning of a prompt is the tokenizer's and the template's; nothing is padded.
        *("bos_token_id", "pad_token_id"),
        *("transformers_version", "_from_model_config"),
        # What generate() returns, and how it computes the same tokens.
        *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"),
        *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "low_memory", "prefill_chunk_size"),
        *("compile_config", "disable_compile", "continuous_batching_config", "trust_remote_code"),
        # Tokens guessed ahead, which are kept where the model says the same.
        *("use_mtp", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule"),
        *("assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size"),
        *("assistant_early_exit", "assistant_lookbehind", "target_lookbehind"),
        *("assistant_ensemble_weight", "speculation_type"),
        # Probabilities are normalised in any case; logits that are not finite are an error.
        *("renormalize_logits", "remove_invalid_values"),
        # Of a beam search, and of what a decoder begins with that has an encoder.
        *("early_stopping", "length_penalty", "decoder_start_token_id"),
    }
)


def not_done(config: JsonMapping, *, encoder: bool, num_beams: int = 1) -> list[str]:
    """A line for each thing that generation_config asks for and does not get.

    encoder: whether the model has one; num_beams: answers that are decoded side by side.
    """
    names = {**_NOT_DONE, **({} if encoder else _NOT_BY_DECODERS), **(_NOT_BY_A_BEAM_SEARCH if num_beams > 1 else {})}
    asked = [name for name, nothing in names.items() if config.get(name) not in nothing]
    asked += [name for name in unread(config) if name not in asked]
    known = {*_NOT_DONE, *_NOT_BY_DECODERS, *_OBEYED, *_OF_NO_EFFECT}
    asked += [name for name, value in config.items() if value and name not in known]
    return [f"the checkpoint asks for {_shown(name)} = {config[name]!r:.200}, which is not done" for name in asked]


def _shown(name: str) -> str:
    return name if name.isidentifier() and len(name) <= 60 else f"{name[:60]!r}"
