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
    "no_repeat_ngram_size": (None, 0),
    "min_length": (None, 0, 1),
    "min_new_tokens": (None, 0),
    "bad_words_ids": (None, []),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "sequence_bias": (None, [], {}),
}


def not_done(config: JsonMapping, *, encoder: bool, num_beams: int = 1) -> list[str]:
    """A line for each thing that generation_config asks for and does not get.

    encoder: whether the model has one; num_beams: answers that are decoded side by side.
    """
    names = {**_NOT_DONE, **({} if encoder else _NOT_BY_DECODERS), **(_NOT_BY_A_BEAM_SEARCH if num_beams > 1 else {})}
    asked = [name for name, nothing in names.items() if config.get(name) not in nothing]
    asked += [name for name in unread(config) if name not in asked]
    return [f"the checkpoint asks for {name} = {config[name]!r}, which is not done" for name in asked]
