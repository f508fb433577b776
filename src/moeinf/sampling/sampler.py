"""From logits to the next token: penalties, top-k, top-p, min-p, temperature, draw."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np

from moeinf import _native
from moeinf.errors import NotFiniteError
from moeinf.sampling.constraint import Constraint
from moeinf.sampling.params import SamplingParams
from moeinf.sampling.ranking import largest
from moeinf.types import Float32Array


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
        params = self._params
        if params.temperature == 0:
            return int(logits.argmax())  # the first of equals
        ids, scores = None, logits  # None: all
        if params.top_k and params.top_k < len(logits):
            ids = largest(logits, params.top_k)
            scores = logits[ids]
        drawn = _native.draw_token(scores, params.temperature, params.top_p, params.min_p, self._random.random())
        return drawn if ids is None else int(ids[drawn])

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
    if not (np.isfinite(logits.max()) and np.isfinite(logits.min())):  # both are NaN where any of them is
        raise NotFiniteError(
            "non-finite logits: weights are damaged or the machine computes wrongly; check the model "
            "with `moeinf verify`"
        )
