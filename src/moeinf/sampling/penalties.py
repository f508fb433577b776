"""What an answer does to the logits of its next token before one is drawn: biases, penalties and bans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set

import numpy as np

from moeinf.sampling.bans import Forbidden, favoured
from moeinf.sampling.params import SamplingParams
from moeinf.types import Float32Array, FloatArray, IntArray

_LARGEST = float(np.finfo(np.float32).max)


class Counts:
    """How often each token is among the last `window` ones (None: all) of a sequence that grows, from `start` on."""

    def __init__(self, window: int | None, start: int = 0) -> None:
        self._window, self._begin, self._end = window, start, start
        self._counts: Counter[int] = Counter()

    def follow(self, history: Sequence[int], num_ids: int) -> tuple[IntArray, IntArray]:
        """The ids below num_ids that are in the window, and how often each is. history: it begins with the last one."""
        end = len(history)
        begin = self._begin if self._window is None else max(self._begin, end - self._window)
        self._counts.update(history[max(begin, self._end) : end])
        self._counts.subtract(history[self._begin : min(begin, self._end)])
        self._begin, self._end = begin, end
        kept = {token: count for token, count in self._counts.items() if count and token < num_ids}
        size = len(kept)
        return np.fromiter(kept, np.int64, size), np.fromiter(kept.values(), np.int64, size)


class Adjustments:
    """Of the logits of one answer, step by step."""

    def __init__(self, params: SamplingParams, ends: Set[int], prompt_tokens: int) -> None:
        """ends: tokens that end the answer."""
        recent = None if params.repeat_last_n < 0 else params.repeat_last_n
        self._params, self._ends, self._prompt_tokens = params, ends, prompt_tokens
        self._all, self._recent, self._answer = Counts(None), Counts(recent), Counts(None, prompt_tokens)
        self._forbidden = Forbidden(params.bans, ends)
        self._ids = np.array(list(params.logit_bias), np.int64)
        self._biases = np.array(list(params.logit_bias.values()), np.float64)

    def apply(self, logits: Float32Array, history: Sequence[int]) -> Float32Array:
        """A copy of the logits with biases and penalties, all of them finite."""
        params, num_ids = self._params, len(logits)
        changed: Float32Array = logits.copy()
        known = self._ids < num_ids
        _put(changed, self._ids[known], changed[self._ids[known]] + self._biases[known])
        for token, bias in favoured(params.bans, history):
            if token < num_ids:
                _put(changed, token, float(changed[token]) + bias)
        if params.repetition_penalty != 1:
            _repetition(changed, self._all.follow(history, num_ids)[0], params.repetition_penalty)
        ids, counts = self._recent.follow(history, num_ids)
        if params.repeat_penalty != 1:
            _repetition(changed, ids, params.repeat_penalty)
        if not params.windowed_penalties:
            ids, counts = self._answer.follow(history, num_ids)
        _put(changed, ids, changed[ids] - (counts * params.frequency_penalty + params.presence_penalty))
        return changed

    def banned(self, history: Sequence[int]) -> IntArray:
        """The ids that may not come next."""
        params, length = self._params, len(history)
        tokens = self._forbidden.tokens(history, first=length == self._prompt_tokens)
        if length - self._prompt_tokens < params.min_tokens or length < params.bans.min_length:
            tokens = tokens | self._ends
        return np.array(sorted(tokens), np.int64)


def _repetition(logits: Float32Array, ids: IntArray, penalty: float) -> None:
    """With the rounding of transformers, which computes in float32: the greedy choice of two close ones hangs on it."""
    found, factor = logits[ids].astype(np.float64), float(np.float32(penalty))
    _put(logits, ids, np.where(found < 0, found * factor, found / factor))


def _put(logits: Float32Array, ids: IntArray | int, values: FloatArray | float) -> None:
    """Sets logits; what float32 does not hold becomes the largest that it does."""
    logits[ids] = np.clip(values, -_LARGEST, _LARGEST)
