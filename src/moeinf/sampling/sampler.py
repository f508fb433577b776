"""From logits to the next token: penalties, top-k, top-p, min-p, temperature, draw."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from moeinf.errors import NotFiniteError, UsageError
from moeinf.types import Float32Array, FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when an answer ends. Raises UsageError for a value out of range."""

    temperature: float = 0.8  # 0: always the likeliest token
    top_k: int = 40  # 0: off
    top_p: float = 0.95  # 1: off; keeps the token that crosses it
    min_p: float = 0.0  # 0: off; keeps p >= min_p * largest p
    repeat_penalty: float = 1.0  # 1: off
    repeat_last_n: int = 64  # window of the three penalties; 0: off, -1: the whole context
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = -1  # -1: a new one each time
    num_predict: int = -1  # -1: until the end of the answer or of the context
    stop: tuple[str, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kinds = option_kinds()
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
}
# Their name in generation_config.json, where the two differ.
_CHECKPOINT_NAMES: Mapping[str, str] = {"repeat_penalty": "repetition_penalty", "num_predict": "max_new_tokens"}
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
}
_SORTED = 256  # tokens at most
_FROM_CHECKPOINT = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty")


def option_kinds() -> dict[str, str]:
    """Name of each option -> its type as text ("float", "int", "tuple[str, ...]"), for those who parse user input."""
    return {option.name: str(option.type) for option in fields(SamplingParams) if option.name != "logit_bias"}


def parse_option(name: str, text: str) -> Any:
    """The value of an option written as text. Raises UsageError for an unknown name or a text that is no such value."""
    kinds = option_kinds()
    if name not in kinds:
        raise UsageError(f"unknown option {name!r}; known: {', '.join(sorted(kinds))}")
    if name == "stop":
        return (text,)
    kind, word = (int, "a whole number") if kinds[name] == "int" else (float, "a number")
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"{name} must be {word}, not {text!r}") from None


def resolve_params(
    given: Mapping[str, Any],
    environment: Mapping[str, Any] | None = None,
    generation_config: Mapping[str, Any] | None = None,
) -> SamplingParams:
    """Each option from `given`, else `environment`, else the checkpoint's generation_config, else the default.

    None counts as not given. do_sample=false in generation_config means greedy. Raises UsageError for unknown names.
    """
    known = {option.name for option in fields(SamplingParams)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise UsageError(f"unknown option {unknown[0]!r}; known: {', '.join(sorted(known))}")
    values = from_generation_config(generation_config or {})
    for source in (environment or {}, given):
        values |= {name: value for name, value in source.items() if value is not None}
    return SamplingParams(**values)


def from_generation_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The checkpoint's own recommendation, in our names; what is out of range is left out."""
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
    """A line for each thing that generation_config asks for and does not get; beams: whether it gets a beam search."""
    names = _NOT_DONE if beams else {**_NOT_DONE, "num_beams": (None, 1)}
    return [
        f"the checkpoint asks for {name} = {config[name]!r}, which is not done"
        for name, nothing in names.items()
        if config.get(name) not in nothing
    ]


class Sampler:
    """Draws the tokens of one answer. Equal params, seed and logits give equal tokens."""

    def __init__(self, params: SamplingParams, *, num_ids: int | None = None) -> None:
        """num_ids: size of the tokenizer; ids beyond it (padding rows of the model) are never drawn."""
        self.seed = params.seed if params.seed >= 0 else secrets.randbits(31)
        self._params = params
        self._num_ids = num_ids
        self._random = np.random.Generator(np.random.PCG64(self.seed))

    def sample(self, logits: Float32Array, history: Sequence[int]) -> int:
        """The next token. logits: float32 [vocab], left as they are; history: prompt and generated ids.

        Raises NotFiniteError for NaN or infinite logits.
        """
        logits = self._adjusted(logits[: self._num_ids], history)  # [ids]
        if self._params.temperature == 0:
            return int(logits.argmax())  # the first of equals
        ids, scores = self._candidates(logits)
        with np.errstate(over="ignore"):  # a tiny temperature: all but the best get -inf, which is right
            weights = np.exp((scores - scores.max()) / self._params.temperature)
        return int(ids[_leading(scores, weights, self._random.random() * float(weights.sum()), beyond=True)[-1]])

    def _candidates(self, logits: Float32Array) -> tuple[IntArray, FloatArray]:
        """Ids, ascending, and logits of the tokens that pass top_k, then top_p, then min_p; at least one."""
        params = self._params
        ids = largest(logits, params.top_k or len(logits))
        scores = logits[ids].astype(np.float64)
        weights: FloatArray = np.exp(scores - scores.max())
        if params.top_p < 1:
            kept = np.sort(_leading(scores, weights, params.top_p * float(weights.sum()), beyond=False))
            ids, scores, weights = ids[kept], scores[kept], weights[kept]
        passing = weights >= params.min_p
        return ids[passing], scores[passing]

    def _adjusted(self, logits: Float32Array, history: Sequence[int]) -> Float32Array:
        require_finite(logits)
        params = self._params
        changes = {i: bias for i, bias in params.logit_bias.items() if 0 <= i < len(logits)}
        penalised = (params.repeat_penalty, params.presence_penalty, params.frequency_penalty) != (1.0, 0.0, 0.0)
        counts = self._recent_counts(history, len(logits)) if penalised else {}
        if not changes and not counts:
            return logits
        logits = logits.copy()
        for i, bias in changes.items():
            logits[i] += bias
        for i, count in counts.items():
            value = float(logits[i])
            value = value / params.repeat_penalty if value > 0 else value * params.repeat_penalty
            logits[i] = value - count * params.frequency_penalty - params.presence_penalty
        return logits

    def _recent_counts(self, history: Sequence[int], num_ids: int) -> dict[int, int]:
        window = self._params.repeat_last_n
        recent = history if window < 0 else history[max(0, len(history) - window) :]
        counts: dict[int, int] = {}
        for i in recent:
            if i < num_ids:
                counts[i] = counts.get(i, 0) + 1
        return counts


def require_finite(logits: Float32Array) -> None:
    """Raises NotFiniteError for logits that cannot be chosen by."""
    if not np.isfinite(logits).all():
        raise NotFiniteError(
            "non-finite logits: weights are damaged or the machine computes wrongly; check the model "
            "with `moeinf verify`"
        )


def largest(scores: FloatArray | Float32Array, count: int) -> IntArray:
    """Indices of the `count` largest (of all, where there are fewer), ascending; of equals the first are taken."""
    if count >= len(scores):
        return np.arange(len(scores))
    border = np.partition(scores, -count)[-count]
    above, equal = np.flatnonzero(scores > border), np.flatnonzero(scores == border)
    indices: IntArray = np.sort(np.concatenate([above, equal[: count - len(above)]]))
    return indices


def _leading(scores: FloatArray, weights: FloatArray, target: float, *, beyond: bool) -> IntArray:
    """Indices of the largest scores (of equals the first) up to the one whose weight takes their sum to `target`, or
    beyond it; that one is the last. Where rounding leaves the sum short of it, all.

    Only a few scores are ever sorted: a vocabulary of 200,000 is halved until these are left.
    """
    rest, before = np.arange(len(scores)), list[IntArray]()
    size = min(_SORTED, len(rest))  # what is sought is mostly among the likeliest
    while len(rest) > _SORTED:
        mask = np.zeros(len(rest), bool)
        mask[largest(scores[rest], size)] = True
        upper = rest[mask]
        total = float(weights[upper].sum())
        if target < total or (target == total and not beyond):
            rest = upper
        else:
            target -= total
            before.append(upper)
            rest = rest[~mask]
        size = len(rest) // 2
    ranked = rest[np.lexsort((rest, -scores[rest]))]
    at = int(np.searchsorted(np.cumsum(weights[ranked]), target, side="right" if beyond else "left"))
    return np.concatenate([*before, ranked[: at + 1]])


def _lies_within(value: object, low: float, high: float) -> bool:
    """Whether it is a finite number within the bounds. Whole numbers may be longer than a float holds."""
    return isinstance(value, int | float) and low <= value <= high and abs(value) != math.inf


def _range_text(low: float, high: float) -> str:
    return f"at least {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"
