"""Phi-3.5-MoE: two of 16 experts by sparsemixer, LayerNorm, biases, longrope (arXiv 2404.14219, 2409.12136)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moeinf.models.families.mixtral.mixtral import NAMES
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import NormConfig, Sight
from moeinf.models.layers.decoder import Logits, parse_decoder
from moeinf.models.layers.moe import BlockSite, Moe, all_routed
from moeinf.models.layers.protocol import Layers, Router, Weights


class Sparsemixer:
    """Two rounds, in each the best expert of those left (arXiv 2409.12136, section 2; published code: sparsemixer).

    Its weight is its part in a softmax over the experts of the round whose score is at most 2 * jitter below the best,
    relative to the larger of their own magnitude and the best. The two weights do not sum to 1.
    """

    def __init__(self, weights: Weights, gate: str, norm: NormConfig | None, num_experts: int, jitter: float) -> None:
        self._weights, self._math, self._margin = weights, weights.math, 2 * jitter
        self._gate, self._norm = weights.linear(gate), weights.norm(norm)
        self._numbers = self._math.of_host(np.arange(num_experts))

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        hidden = self._norm(x)
        scores = self._gate(hidden)  # [tokens, experts]
        ids = self._math.top_k(scores, 2)
        second = self._math.where(self._numbers != ids[:, :1], scores, float("-inf"))
        weights = [self._weight(scores, scores, ids[:, :1]), self._weight(scores, second, ids[:, 1:])]
        return hidden, self._weights.routing(ids, self._math.concatenate(weights, 1))

    def _weight(self, scores: Hidden, left: Hidden, best: Hidden) -> Hidden:
        """Of the best of the experts left: [tokens, 1]."""
        top, size = self._math.take(scores, best), abs(scores)
        near = top - scores <= self._margin * self._math.where(size > top, size, top)
        return self._math.take(self._math.softmax(self._math.where(near, left, float("-inf"))), best)


class Family(DecoderFamily):
    name = "phimoe"
    renamed = ((r"\.mlp\.router\.", ".block_sparse_moe.gate."), (r"\.mlp\.", ".block_sparse_moe."))

    @staticmethod
    def parse(f: Fields) -> Spec:
        f.only("num_experts_per_tok", 2, None)  # the two rounds of sparsemixer
        decoder = parse_decoder(
            f, norm_eps=1e-5, theta=1e6, norm="layer", sight=Sight(f.count("sliding_window", 0) or None)
        )
        decoder = replace(decoder, logits=Logits(bias=f.flag("lm_head_bias", False)))
        moe = routed_shape(f, ("num_local_experts", "num_experts"), 2, decoder.num_layers)
        jitter = 0.0 if f.get("router_jitter_noise") == 0 else f.number("router_jitter_noise", 0.01)

        def router(layers: Layers, blocks: Moe, site: BlockSite) -> Router:
            gate, count = site.block + blocks.names.gate, blocks.moe.experts_of(site.moe_layer)
            return Sparsemixer(layers.weights, gate, site.norm, count, jitter)

        return Spec(decoder, all_routed(moe, f.count("intermediate_size"), router, NAMES))
