"""What an answer does to the logits of its next token before one is drawn: biases, penalties and bans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set

import numpy as np

from moeinf.sampling.bans import Forbidden, favoured
from moeinf.sampling.params import SamplingParams
from moeinf.types import Float32Array, IntArray

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
        self._biases = np.array(list(params.logit_bias.values()), np.float32)

    def apply(self, logits: Float32Array, history: Sequence[int]) -> Float32Array:
        """The logits with biases and penalties, all of them finite; a copy where any differs."""
        changed: Float32Array = logits.copy()
        known = self._ids < len(logits)
        with np.errstate(over="ignore"):
            changed[self._ids[known]] += self._biases[known]
            for token, bias in favoured(self._params.bans, history):
                if token < len(changed):
                    changed[token] += np.float32(bias)
            self._penalise(changed, history)
        np.clip(changed, -_LARGEST, _LARGEST, out=changed)
        return changed

    def _penalise(self, logits: Float32Array, history: Sequence[int]) -> None:
        params = self._params
        if params.repetition_penalty != 1:
            _repetition(logits, self._all.follow(history, len(logits))[0], params.repetition_penalty)
        ids, counts = self._recent.follow(history, len(logits))
        if params.repeat_penalty != 1:
            _repetition(logits, ids, params.repeat_penalty)
        if params.penalise_answer:
            ids, counts = self._answer.follow(history, len(logits))
        logits[ids] -= counts * params.frequency_penalty + params.presence_penalty

    def banned(self, history: Sequence[int]) -> IntArray:
        """The ids that may not come next."""
        params, length = self._params, len(history)
        tokens = self._forbidden.tokens(history, first=length == self._prompt_tokens)
        if length - self._prompt_tokens < params.min_tokens or length < params.bans.min_length:
            tokens = tokens | self._ends
        return np.array(sorted(tokens), np.int64)


def _repetition(logits: Float32Array, ids: IntArray, penalty: float) -> None:
    """In float32, as transformers computes it: the greedy choice between two close logits hangs on it."""
    found = logits[ids]
    logits[ids] = np.where(found < 0, found * np.float32(penalty), found / np.float32(penalty))
