"""The options of an answer: how tokens are drawn, and when it ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import TypeGuard

from moeinf.config.option import option
from moeinf.errors import UsageError
from moeinf.sampling.bans import NO_BANS, Bans, bans_of
from moeinf.types import JsonMapping, JsonObject


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
        "Make the last repeat_last_n tokens less likely; 1: off.",
        metavar="X",
        ollama="repeat_penalty",
        openai=("repeat_penalty",),
    )
    repeat_last_n: int = option(
        64,
        "How many of the last tokens of prompt and answer the penalties look at; 0: none, -1: all.",
        metavar="N",
        ollama="repeat_last_n",
        openai=("repeat_last_n",),
    )
    presence_penalty: float = option(
        0.0,
        "Subtract this from the logit of each of the last repeat_last_n tokens.",
        metavar="X",
        ollama="presence_penalty",
        openai=("presence_penalty",),
    )
    frequency_penalty: float = option(
        0.0,
        "Subtract this for each time that the token is among them.",
        metavar="X",
        ollama="frequency_penalty",
        openai=("frequency_penalty",),
    )
    seed: int = option(-1, "Seed of the draws; -1: a new one each time.", metavar="N", ollama="seed", openai=("seed",))
    num_predict: int = option(
        -1,
        "Most tokens of an answer; -1: until it ends, -2: also beyond the checkpoint's own bound.",
        metavar="TOKENS",
        flags=("--num-predict", "-n"),
        ollama="num_predict",
        openai=("n_predict", "max_tokens", "max_completion_tokens"),
    )
    stop: tuple[str, ...] = option(
        (), "End the answer before this text; repeatable.", metavar="TEXT", ollama="stop", openai=("stop",)
    )
    repetition_penalty: float = option(
        1.0,
        "Make every token of prompt and answer less likely, as checkpoints ask for it; 1: off.",
        metavar="X",
        ollama="repetition_penalty",
        openai=("repetition_penalty",),
    )
    min_tokens: int = option(
        0,
        "Fewest tokens of an answer before one may end it.",
        metavar="TOKENS",
        ollama="min_tokens",
        openai=("min_tokens",),
    )
    typical_p: float = option(
        1.0,
        "Draw from tokens about as surprising as expected, whose probabilities sum to P; 1: from all.",
        metavar="P",
        ollama="typical_p",
        openai=("typical_p",),
    )
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    thought_tokens: int = -1  # most tokens of thoughts (see sampling/thought_budget.py); -1: as many as there are
    top_logprobs: int = -1  # likeliest tokens to report with each token (see sampling/logprobs.py); -1: nothing
    # Whether presence and frequency penalty count the last repeat_last_n tokens, as ollama's; else all of the answer.
    windowed_penalties: bool = False
    bans: Bans = NO_BANS  # of the checkpoint

    def __post_init__(self) -> None:
        kinds = {each.name: each.type for each in fields(SamplingParams)}
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if not _lies_within(value, low, high):
                raise UsageError(f"{name} must be {_range_text(low, high)}, not {value!r}")
            if kinds[name] == "int" and not isinstance(value, int):
                raise UsageError(f"{name} must be a whole number, not {value!r}")
        if isinstance(self.stop, str) or not all(isinstance(text, str) for text in self.stop):
            raise UsageError(f'stop must be a sequence of texts, not {self.stop!r}; write stop=("END",)')
        for token_id, bias in self.logit_bias.items():
            if not isinstance(token_id, Integral) or isinstance(token_id, bool):
                raise UsageError(f"logit_bias must be for token ids, not {token_id!r}")
            if isinstance(bias, bool) or not (isinstance(bias, Real) and -_MOST_BIAS <= bias <= _MOST_BIAS):
                wanted = _range_text(-_MOST_BIAS, _MOST_BIAS)
                raise UsageError(f"logit_bias must be {wanted}, not {bias!r} for token {token_id}")


_MOST_BIAS = 1e4
# Bounds are what the formulas allow; the upper ones keep float32 finite.
RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 1e4),
    "top_k": (-1, math.inf),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "repeat_penalty": (1e-3, 1e3),
    "repeat_last_n": (-1, math.inf),
    "presence_penalty": (-1e3, 1e3),
    "frequency_penalty": (-1e3, 1e3),
    "seed": (-math.inf, math.inf),
    "num_predict": (-2, math.inf),
    "repetition_penalty": (1e-3, 1e3),
    "min_tokens": (0, math.inf),
    "typical_p": (0, 1),
    "top_logprobs": (-1, 20),
    "thought_tokens": (-1, math.inf),
}
WINDOWED = ("presence_penalty", "frequency_penalty")  # as_ollama_means
_FROM_CHECKPOINT: Mapping[str, str] = {  # fields, and their names in generation_config.json
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",  # transformers knows neither of these two; makers write what vLLM is told
    "frequency_penalty": "frequency_penalty",
    "min_tokens": "min_new_tokens",
}


def resolve_params(given: JsonMapping, generation_config: JsonMapping | None = None) -> SamplingParams:
    """Each option from `given`, else from the checkpoint's generation_config, else the default.

    None counts as not given. do_sample=false in generation_config means greedy. A repeat_penalty that is given takes
    the place of the checkpoint's repetition_penalty. Raises UsageError for unknown names.
    """
    known = {each.name for each in fields(SamplingParams)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise UsageError(f"unknown option {unknown[0]!r}; known: {', '.join(sorted(known))}")
    said = {name: value for name, value in given.items() if value is not None}
    asked = from_generation_config(generation_config or {})
    if "repeat_penalty" in said:
        asked.pop("repetition_penalty", None)
    return SamplingParams(**asked | said)


def as_ollama_means(given: JsonMapping) -> JsonObject:
    """Options under ollama's names, in a request, on the command line or with a model: its penalties have a window."""
    return {**given, "windowed_penalties": True} if given.keys() & WINDOWED else dict(given)


def from_generation_config(config: JsonMapping) -> JsonObject:
    """What the checkpoint recommends, in our names. A value that is out of range is left out."""
    values: JsonObject = {}
    kinds = {each.name: each.type for each in fields(SamplingParams)}
    for name, asked in _FROM_CHECKPOINT.items():
        value = config.get(asked)
        if _lies_within(value, *RANGES[name]):
            values[name] = int(value) if kinds[name] == "int" else value
    if config.get("do_sample") is False:
        values["temperature"] = 0.0
    if (bans := bans_of(config)) != NO_BANS:
        values["bans"] = bans
    return values


def _lies_within(value: object, low: float, high: float) -> TypeGuard[int | float]:
    """Whether it is a finite number within the bounds. Whole numbers may be longer than a float holds."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return low <= value <= high and abs(value) != math.inf


def _range_text(low: float, high: float) -> str:
    if math.isinf(low):
        return "a whole number"
    return f"at least {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"
