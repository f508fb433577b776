"""How probable the model found the tokens of an answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from moeinf.sampling.ranking import largest
from moeinf.sampling.sampler import Sampler
from moeinf.types import Float32Array


@dataclass(frozen=True, slots=True)
class ChosenToken:
    """A token of an answer, with natural logarithms of probabilities.

    They are the log-softmax of the raw logits, in float64 and over all ids of the tokenizer: as the model gave them,
    before logit_bias, penalties, a format, temperature and truncation.
    """

    token_id: int
    logprob: float
    top: list[tuple[int, float]]  # the likeliest tokens, best first, and of equals the lowest id


class ReportingSampler:
    """A sampler that also reports how probable each token was."""

    def __init__(self, sampler: Sampler, num_top: int, report: Callable[[ChosenToken], None]) -> None:
        """num_top: how many of the likeliest tokens are reported with each."""
        self._sampler, self._num_top, self._report = sampler, num_top, report

    def sample(self, logits: Float32Array, history: Sequence[int]) -> int:
        token = self._sampler.sample(logits, history)
        self._report(chosen_token(logits[: self._sampler.num_ids], token, self._num_top))
        return token


def chosen_token(logits: Float32Array, token: int, num_top: int) -> ChosenToken:
    """logits [ids], finite."""
    scores = logits.astype(np.float64)
    scores -= scores.max()
    log_sum = math.log(np.exp(scores).sum())
    ids: list[int] = largest(scores, num_top).tolist() if num_top else []
    top = sorted(((i, float(scores[i]) - log_sum) for i in ids), key=lambda entry: (-entry[1], entry[0]))
    return ChosenToken(token, float(scores[token]) - log_sum, top)
