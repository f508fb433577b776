"""From logits to the next token: penalties, top-k, top-p, min-p, temperature, draw."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np

from moeinf.errors import NotFiniteError
from moeinf.sampling.constraint import Constraint
from moeinf.sampling.params import SamplingParams
from moeinf.types import Float32Array, FloatArray, IntArray

_SORTED = 256  # tokens at most


class Sampler:
    """Draws the tokens of one answer. Equal params, seed and logits give equal tokens."""

    def __init__(
        self, params: SamplingParams, *, num_ids: int | None = None, constraint: Constraint | None = None
    ) -> None:
        """num_ids: size of the tokenizer; ids beyond it (padding rows of the model) are never drawn.

        constraint: only tokens that it allows are drawn, and it is told which.
        """
        self.seed = params.seed if params.seed >= 0 else secrets.randbits(31)
        self._params = params
        self.num_ids, self._constraint = num_ids, constraint
        self._random = np.random.Generator(np.random.PCG64(self.seed))

    def sample(self, logits: Float32Array, history: Sequence[int]) -> int:
        """The next token. logits: float32 [vocab], left as they are; history: prompt and generated ids.

        Raises NotFiniteError for NaN or infinite logits.
        """
        logits = self._adjusted(logits[: self.num_ids], history)  # [ids]
        if self._constraint is None:
            return self._draw(logits)
        allowed = self._constraint.allowed()
        token = int(allowed[self._draw(logits[allowed])])
        self._constraint.accept(token)
        return token

    def _draw(self, logits: Float32Array) -> int:
        """An index into logits [choices]."""
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
