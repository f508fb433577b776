"""Routers of DeepSeek's kind: experts are chosen within groups, by scores and a correction bias."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from moeinf.models.fields import Fields
from moeinf.models.layers.array_math import A, Array, ArrayMath, Hidden
from moeinf.models.layers.attention_config import NormConfig
from moeinf.models.layers.moe import BlockSite, MakeRouter, Moe, Scoring
from moeinf.models.layers.protocol import Layers, P, Part, R, Router, RouterOf, Weights


@dataclass(frozen=True, slots=True)
class SoftmaxRouterPart(Part[A, P, R, RouterOf[A, R]]):
    """Norm ("rms" or "rms+1"), then softmax over all experts, and of these the best k."""

    gate: str
    norm: NormConfig | None
    top_k: int
    normalise: bool  # the weights of a token sum to 1


def softmax_router(layers: Layers, moe: Moe, site: BlockSite) -> Router:
    gate = site.block + moe.names.gate
    return layers.make(SoftmaxRouterPart(gate, site.norm, moe.moe.top_k, moe.scoring.normalise))


def sigmoid_moe(
    f: Fields,
    num_layers: int,
    *,
    router: MakeRouter | None = None,
    normalise: bool = True,
    num_future_layers: int = 0,
    moe_layers: Sequence[int] | None = None,
    shared: str = "n_shared_experts",
) -> Moe:
    """Experts that are chosen as DeepSeek-V3's are, with a correction bias. The arguments are those of Moe.parse."""
    return Moe.parse(
        f,
        num_layers,
        router=router or SigmoidRouter,
        normalise=normalise,
        corrected=True,
        num_future_layers=num_future_layers,
        moe_layers=moe_layers,
        shared=shared,
    )


class Groups:
    """Keeps, of each token's scores, those of its best groups of experts."""

    def __init__(self, math: ArrayMath, scoring: Scoring) -> None:
        self._math, self._count, self._used = math, scoring.num_groups, scoring.groups_used
        self._numbers = math.of_host(np.arange(scoring.num_groups))

    def kept(self, scores: Array, of_group: Callable[[Array], Array], instead: float) -> Array:
        """scores [tokens, experts], but `instead` outside of the chosen groups.

        of_group: [tokens, groups, experts of a group] -> [tokens, groups], what groups are chosen by.
        """
        if self._used == self._count:
            return scores
        grouped = scores.reshape(len(scores), self._count, -1)
        chosen = self._math.top_k(of_group(grouped), self._used)
        is_chosen = (chosen[..., None] == self._numbers).any(1)
        return self._math.where(is_chosen[..., None], grouped, instead).reshape(*scores.shape)


class SigmoidRouter:
    """noaux_tc (DeepSeek-V3, arXiv 2412.19437, section 2.1.2; Gate of the published inference/model.py).

    Each expert has a score sigmoid(w x). Chosen is by score + bias, first the groups with the largest sums of their
    two best, then the best experts in them; weighted is by the scores alone.
    """

    added = 1e-20  # to the sum that weights are divided by
    outside = -np.inf  # what counts as the score of experts outside of the chosen groups

    def __init__(self, layers: Layers, moe: Moe, site: BlockSite) -> None:
        weights = layers.weights
        self._top_k, self._scoring = moe.moe.top_k, moe.scoring
        self._math, self._routing, self._num_spares = weights.math, weights.routing, weights.spares
        self._norm, self._gate = weights.norm(site.norm), self._gate_of(weights, site.block + moe.names.gate)
        self._bias = weights.vector(site.block + moe.names.bias) if moe.scoring.corrected else None
        self._groups = Groups(weights.math, moe.scoring)

    def _gate_of(self, weights: Weights, name: str) -> Callable[[Hidden], Hidden]:
        return weights.linear(name)

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        s, math = self._scoring, self._math
        hidden = self._norm(x)
        scores = self._scores(self._gate(hidden))
        kept = self._groups.kept(self._chosen_by(scores), partial(best_two, math), self.outside)
        ids = math.top_k(kept, self._top_k)
        weights = math.take(scores, ids)
        total = self._total(weights) if s.normalise else None
        others = self._spares(kept, scores, total)
        if total is not None:
            weights = weights / total
        routing = self._routing(ids, weights * s.scaling, others)
        return hidden, routing

    def _spares(self, kept: Array, scores: Array, total: Array | None) -> tuple[Array, Array, bool] | None:
        """The experts behind the chosen ones, where somebody asks for them; total: what weights are divided by."""
        if not self._num_spares:
            return None
        ids = self._math.top_k(kept, self._top_k + self._num_spares)[:, self._top_k :]
        weights = self._math.take(scores, ids)
        return ids, (weights if total is None else weights / total) * self._scoring.scaling, total is not None

    def _scores(self, logits: Array) -> Array:
        return self._math.sigmoid(logits)

    def _chosen_by(self, scores: Array) -> Array:
        return scores if self._bias is None else scores + self._bias

    def _total(self, weights: Array) -> Array:
        """What the weights of a token are divided by."""
        return self._math.sum(weights, -1, True) + self.added


def best_two(math: ArrayMath, grouped: Array) -> Array:
    """What Groups are chosen by: the sums of their two best scores."""
    return math.sum(math.take(grouped, math.top_k(grouped, 2)), -1, False)


class GroupedSoftmaxRouter:
    """Softmax over all experts; the groups with the largest scores, and the best k in them (arXiv 2405.04434, 2.2.2).

    Weights are scaled where they are not normalised, and only there (published code: MoEGate.forward).
    """

    def __init__(self, layers: Layers, moe: Moe, site: BlockSite) -> None:
        weights = layers.weights
        self._top_k, self._scoring = moe.moe.top_k, moe.scoring
        self._math, self._routing, self._num_spares = weights.math, weights.routing, weights.spares
        self._norm, self._gate = weights.norm(site.norm), weights.linear(site.block + moe.names.gate)
        self._groups = Groups(weights.math, moe.scoring)

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        math, hidden = self._math, self._norm(x)
        kept = self._groups.kept(math.softmax(self._gate(hidden)), self._best, 0.0)
        ids = math.top_k(kept, self._top_k)
        weights = math.take(kept, ids)
        return hidden, self._routing(ids, self._weighted(weights, weights), self._spares(kept, weights))

    def _best(self, grouped: Array) -> Array:
        return self._math.max(grouped, -1, False)

    def _weighted(self, weights: Array, chosen: Array) -> Array:
        """chosen: the weights of the chosen experts."""
        if self._scoring.normalise and self._top_k > 1:
            return weights / (self._math.sum(chosen, -1, True) + 1e-20)
        return weights * self._scoring.scaling

    def _spares(self, kept: Array, chosen: Array) -> tuple[Array, Array, bool] | None:
        """The experts behind the chosen ones, where somebody asks for them."""
        if not self._num_spares:
            return None
        ids = self._math.top_k(kept, self._top_k + self._num_spares)[:, self._top_k :]
        keeps_sum = self._scoring.normalise and self._top_k > 1
        return ids, self._weighted(self._math.take(kept, ids), chosen), keeps_sum
