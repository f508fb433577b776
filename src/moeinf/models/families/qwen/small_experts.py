"""Small experts that groups of experts share, as one MLP that all tokens have: so GGUF files of GroveMoE hold them.

They lie in tensors of their own there, so that no read of an expert could bring one. All of them stay in memory, one
behind the other, and each token computes all; those of groups it has no expert of count nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.attention_config import MLP_NAMES, Shapes, mlp_shapes
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.moe import BlockSite, Moe
from moeinf.models.layers.moe_block import MoeBlock
from moeinf.models.layers.protocol import Block, Experts, Layers
from moeinf.types import Profiler

_NAME = "chunk_experts."


class GroupRouter:
    """Softmax over all experts, and of these the best k, whose weights sum to 1; keeps what each group has of them."""

    def __init__(self, layers: Layers, moe: Moe, site: BlockSite, group: int) -> None:
        weights = layers.weights
        self._math, self._routing, self._num_spares = weights.math, weights.routing, weights.spares
        self._norm, self._gate = weights.norm(site.norm), weights.linear(site.block + moe.names.gate)
        self._top_k, self._group = moe.moe.top_k, group
        self._numbers = weights.math.of_host(np.arange(moe.moe.num_experts))
        self.of_groups: Array | None = None  # [tokens, groups], of the last tokens

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        math, hidden = self._math, self._norm(x)
        scores = math.softmax(self._gate(hidden))
        ids = math.top_k(scores, self._top_k)
        chosen = math.take(scores, ids)
        total = math.sum(chosen, -1, True)
        kept = math.where((ids[..., None] == self._numbers).any(1), scores, 0.0) / total
        self.of_groups = math.sum(kept.reshape(len(kept), -1, self._group), -1, False)
        return hidden, self._routing(ids, chosen / total, self._spares(scores, total))

    def _spares(self, scores: Array, total: Array) -> tuple[Array, Array, bool] | None:
        if not self._num_spares:
            return None
        ids = self._math.top_k(scores, self._top_k + self._num_spares)[:, self._top_k :]
        return ids, self._math.take(scores, ids) / total, True


@dataclass(frozen=True, slots=True)
class SmallExpertsApart(Moe):
    small: int = 0  # the size of one
    group: int = 1  # how many experts share one
    times: float = 1.0  # what they give is multiplied by

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        shapes, hidden = Moe.shapes(self, decoder), decoder.attention.hidden_size
        for layer in self.moe_layers:
            prefix = f"{decoder.layer(layer)}{self.names.block}{_NAME}"
            shapes |= mlp_shapes(hidden, self.moe.num_experts // self.group * self.small, prefix)
        return shapes

    def routed(
        self, decoder: DecoderConfig, layers: Layers, experts: Experts, profiler: Profiler, site: BlockSite
    ) -> Block:
        weights, router = layers.weights, GroupRouter(layers, self, site, self.group)
        gate, up, down = (weights.linear(f"{site.block}{_NAME}{name}.weight") for name in MLP_NAMES)

        def small(hidden: Hidden) -> Hidden:
            of_groups = router.of_groups
            assert of_groups is not None, "the router comes first"
            act = weights.math.silu(gate(hidden)) * up(hidden)
            shares = act.reshape(*of_groups.shape, self.small) * (of_groups * self.times)[..., None]
            return down(shares.reshape(*act.shape))

        return MoeBlock(site.moe_layer, router, experts, profiler, shared=small)
