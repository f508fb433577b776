"""From logits to the next token: biases, penalties, bans, temperature, top-k, typical-p, top-p, min-p, and the draw."""

from __future__ import annotations

import secrets
from collections.abc import Sequence, Set

import numpy as np

from moeinf import _native
from moeinf.errors import NotFiniteError, UsageError
from moeinf.sampling.constraint import Constraint
from moeinf.sampling.params import SamplingParams
from moeinf.sampling.penalties import Adjustments
from moeinf.sampling.ranking import largest_and_equals
from moeinf.sampling.typical import typical
from moeinf.types import Float32Array, IntArray

_SEEDS = 2**64


class Sampler:
    """Draws the tokens of one answer. Equal params, seed and logits give equal tokens."""

    def __init__(
        self,
        params: SamplingParams,
        *,
        num_ids: int | None = None,
        ends: Set[int] = frozenset(),
        constraint: Constraint | None = None,
        isa: str = "",
    ) -> None:
        """num_ids: size of the tokenizer; ids beyond it (padding rows of the model) are never drawn.

        ends: tokens that end an answer. constraint: only tokens that it allows are drawn, and it is told which.
        isa: the instruction set that draws, as of Kernels.
        """
        self.seed = params.seed % _SEEDS if params.seed != -1 else secrets.randbits(31)
        self._params = params
        self.num_ids, self._ends, self._constraint = num_ids, ends, constraint
        self._isa = isa
        self._adjustments: Adjustments | None = None  # until the first token
        self._random = np.random.Generator(np.random.PCG64(self.seed))

    def sample(self, logits: Float32Array, history: Sequence[int]) -> int:
        """The next token. logits: float32 [vocab], left as they are; history: prompt and generated ids.

        Raises NotFiniteError for NaN or infinite logits.
        """
        logits = logits[: self.num_ids]
        require_finite(logits)
        if self._adjustments is None:
            self._adjustments = Adjustments(self._params, self._ends, len(history))
        if _changes_logits(self._params):
            logits = self._adjustments.apply(logits, history)
        banned = self._adjustments.banned(history)
        if self._constraint is None:
            return self._draw(_without(logits, banned[banned < len(logits)]))
        allowed = self._constraint.allowed()
        places = np.searchsorted(allowed, banned[banned <= allowed[-1]])
        places = places[np.isin(allowed[places], banned)]
        token = int(allowed[self._draw(_without(logits[allowed], places))])
        self._constraint.accept(token)
        return token

    def _draw(self, scores: Float32Array) -> int:
        """An index into scores [choices], of which one at least is finite."""
        params = self._params
        if params.temperature == 0:
            return int(scores.argmax())  # the first of equals
        ids = None  # all
        if 0 < params.top_k < len(scores):
            ids = largest_and_equals(scores, params.top_k)
            scores = scores[ids]
        if params.typical_p < 1:
            kept = typical(scores, params.temperature, params.typical_p)
            ids, scores = kept if ids is None else ids[kept], scores[kept]
        uniform = self._random.random()
        drawn = _native.draw_token(scores, params.temperature, params.top_p, params.min_p, uniform, isa=self._isa)
        return drawn if ids is None else int(ids[drawn])


def _changes_logits(params: SamplingParams) -> bool:
    penalties = (params.repeat_penalty, params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    return bool(params.logit_bias or params.bans.sequence_bias) or penalties != (1, 1, 0, 0)


def _without(scores: Float32Array, banned: IntArray) -> Float32Array:
    """The scores with minus infinity for what is banned; as they are where nothing would be left."""
    if not len(banned):
        return scores
    left = scores.copy()
    left[banned] = -np.inf
    return left if np.isfinite(left.max()) else scores


def check_token_ids(params: SamplingParams, num_ids: int) -> None:
    """Raises UsageError for a bias of a token that the model has not."""
    for token in params.logit_bias:
        if not 0 <= token < num_ids:
            raise UsageError(f"logit_bias names token {token}, but the ids of this model go from 0 to {num_ids - 1}")


def require_finite(logits: Float32Array) -> None:
    """Raises NotFiniteError for logits that cannot be chosen by."""
    if not (np.isfinite(logits.max()) and np.isfinite(logits.min())):  # both are NaN where any of them is
        raise NotFiniteError(
            "non-finite logits: weights are damaged or the machine computes wrongly; check the model "
            "with `moeinf verify`"
        )
