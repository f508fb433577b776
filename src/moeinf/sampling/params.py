"""The options of an answer: how tokens are drawn, and when it ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from moeinf.config.option import option
from moeinf.errors import UsageError


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when an answer ends. Raises UsageError for a value out of range."""

    temperature: float = option(
        0.8,
        "How freely tokens are drawn; 0: always the likeliest token.",
        metavar="X",
        ollama="temperature",
        openai=("temperature",),
    )
    top_k: int = option(
        40, "Draw from the N likeliest tokens only; 0: from all.", metavar="N", ollama="top_k", openai=("top_k",)
    )
    top_p: float = option(
        0.95,
        "Draw from the likeliest tokens whose probabilities sum to P; 1: from all.",
        metavar="P",
        ollama="top_p",
        openai=("top_p",),
    )
    min_p: float = option(
        0.0,
        "Draw from tokens of at least P times the best probability; 0: from all.",
        metavar="P",
        ollama="min_p",
        openai=("min_p",),
    )
    repeat_penalty: float = option(
        1.0,
        "Make tokens that came before less likely; 1: off.",
        metavar="X",
        ollama="repeat_penalty",
        openai=("repeat_penalty",),
    )
    repeat_last_n: int = option(
        64, "How many of the last tokens the penalties look at; 0: none, -1: all.", metavar="N", ollama="repeat_last_n"
    )
    presence_penalty: float = option(
        0.0,
        "Subtract this from the logit of each token that came before.",
        metavar="X",
        ollama="presence_penalty",
        openai=("presence_penalty",),
    )
    frequency_penalty: float = option(
        0.0,
        "Subtract this for each time that the token came before.",
        metavar="X",
        ollama="frequency_penalty",
        openai=("frequency_penalty",),
    )
    seed: int = option(-1, "Seed of the draws; -1: a new one each time.", metavar="N", ollama="seed", openai=("seed",))
    num_predict: int = option(
        -1,
        "Most tokens of an answer; -1: until it ends.",
        metavar="TOKENS",
        flags=("--num-predict", "-n"),
        ollama="num_predict",
        openai=("max_tokens", "max_completion_tokens"),
    )
    stop: tuple[str, ...] = option(
        (), "End the answer before this text; repeatable.", metavar="TEXT", ollama="stop", openai=("stop",)
    )
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    top_logprobs: int = -1  # likeliest tokens to report with each token (see sampling/logprobs.py); -1: nothing

    def __post_init__(self) -> None:
        kinds = {each.name: each.type for each in fields(SamplingParams)}
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) != math.inf
            if not number or not low <= value <= high:
                raise UsageError(f"{name} must be {_range_text(low, high)}, not {value!r}")
            if kinds[name] == "int" and not isinstance(value, int):
                raise UsageError(f"{name} must be a whole number, not {value!r}")
        if isinstance(self.stop, str) or not all(isinstance(text, str) for text in self.stop):
            raise UsageError(f'stop must be a sequence of texts, not {self.stop!r}; write stop=("END",)')
        for token_id, bias in self.logit_bias.items():
            if not math.isfinite(bias):
                raise UsageError(f"logit_bias must be finite numbers, not {bias!r} for token {token_id}")


# Bounds are what the formulas allow; the upper ones keep float32 finite.
_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 1e4),
    "top_k": (0, math.inf),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "repeat_penalty": (1e-3, 1e3),
    "repeat_last_n": (-1, math.inf),
    "presence_penalty": (-1e3, 1e3),
    "frequency_penalty": (-1e3, 1e3),
    "seed": (-1, 2**63 - 1),
    "num_predict": (-1, math.inf),
    "top_logprobs": (-1, 20),
}
# Their name in generation_config.json, where the two differ.
_CHECKPOINT_NAMES: Mapping[str, str] = {"repeat_penalty": "repetition_penalty"}
_NOT_DONE: Mapping[str, tuple[Any, ...]] = {  # of generation_config, with the values that ask for nothing
    "no_repeat_ngram_size": (None, 0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "min_length": (None, 0, 1),
    "min_new_tokens": (None, 0),
    "bad_words_ids": (None,),
    "forced_eos_token_id": (None,),
    "num_beam_groups": (None, 1),
    "diversity_penalty": (None, 0.0),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "stop_strings": (None, []),
    "top_h": (None,),
    "typical_p": (None, 1.0),
    "epsilon_cutoff": (None, 0.0),
    "eta_cutoff": (None, 0.0),
    "penalty_alpha": (None, 0.0),
    "encoder_repetition_penalty": (None, 1.0),
    "exponential_decay_length_penalty": (None,),
    "sequence_bias": (None,),
    "guidance_scale": (None, 1.0),
    "token_healing": (None, False),
    "watermarking_config": (None,),
    "dola_layers": (None,),
    "constraints": (None,),
    "force_words_ids": (None,),
    "num_return_sequences": (None, 1),
    "max_time": (None,),
}
_FROM_CHECKPOINT = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty")


def resolve_params(given: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None) -> SamplingParams:
    """Each option from `given`, else from the checkpoint's generation_config, else the default.

    None counts as not given. do_sample=false in generation_config means greedy. Raises UsageError for unknown names.
    """
    known = {each.name for each in fields(SamplingParams)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise UsageError(f"unknown option {unknown[0]!r}; known: {', '.join(sorted(known))}")
    said = {name: value for name, value in given.items() if value is not None}
    return SamplingParams(**from_generation_config(generation_config or {}) | said)


def from_generation_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the checkpoint recommends, in our names. A value that is out of range is left out."""
    values: dict[str, Any] = {}
    for name in _FROM_CHECKPOINT:
        value = config.get(_CHECKPOINT_NAMES.get(name, name))
        low, high = _RANGES[name]
        if isinstance(value, int | float) and not isinstance(value, bool) and _lies_within(value, low, high):
            values[name] = int(value) if name == "top_k" else value
    if config.get("do_sample") is False:
        values["temperature"] = 0.0
    return values


def not_done(config: Mapping[str, Any], *, beams: bool) -> list[str]:
    """A line for each thing that generation_config asks for and does not get.

    beams: whether it gets a beam search.
    """
    names = _NOT_DONE if beams else {**_NOT_DONE, "num_beams": (None, 1)}
    return [
        f"the checkpoint asks for {name} = {config[name]!r}, which is not done"
        for name, nothing in names.items()
        if config.get(name) not in nothing
    ]


def _lies_within(value: object, low: float, high: float) -> bool:
    """Whether it is a finite number within the bounds. Whole numbers may be longer than a float holds."""
    return isinstance(value, int | float) and low <= value <= high and abs(value) != math.inf


def _range_text(low: float, high: float) -> str:
    return f"at least {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"
