"""DeepSeek-V2 and V2-Lite: latent attention; softmax routing within groups, shared experts (arXiv 2405.04434)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from moeinf.models.fields import Fields
from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.latent.mla import LATENT_MATRICES, NO_LATENT_MATRICES, LatentConfig, parse_latent
from moeinf.models.layers.moe import BlockSite, MlpForm, Moe
from moeinf.models.layers.protocol import Layers
from moeinf.models.layers.routers import Groups


def latent_spec(decoder: DecoderConfig, latent: LatentConfig, blocks: Moe) -> Spec:
    """Of a family with latent attention in every layer."""
    return Spec(decoder, blocks, dict.fromkeys(range(decoder.num_layers), latent))


def _parse(f: Fields) -> Spec:
    f.only("scoring_func", "softmax", None)
    f.only("topk_method", "greedy", "group_limited_greedy", None)
    f.only("rope_interleave", True, None)
    decoder, latent = parse_latent(f, interleaved=True)
    blocks = Moe.parse(f, decoder.num_layers, router=SoftmaxRouter, normalise=False, corrected=False)
    blocks = replace(blocks, form=MlpForm(f.flag("mlp_bias", False)))
    if f.get("topk_method") != "group_limited_greedy":
        blocks = blocks.without_groups()
    return latent_spec(decoder, latent, blocks)


class SoftmaxRouter:
    """Softmax over all experts; the groups with the largest scores, and the best k in them (section 2.2.2).

    Weights are scaled where they are not normalised, and only there (published code: MoEGate.forward).
    """

    def __init__(self, layers: Layers, moe: Moe, site: BlockSite) -> None:
        weights = layers.weights
        self._top_k, self._scoring = moe.moe.top_k, moe.scoring
        self._math, self._routing = weights.math, weights.routing
        self._norm, self._gate = weights.norm(site.norm), weights.linear(site.block + moe.names.gate)
        self._groups = Groups(weights.math, moe.scoring)

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        s, math = self._scoring, self._math
        hidden = self._norm(x)
        kept = self._groups.kept(math.softmax(self._gate(hidden)), self._best, 0.0)
        ids = math.top_k(kept, self._top_k)
        weights = math.take(kept, ids)
        if s.normalise and self._top_k > 1:
            weights = weights / (math.sum(weights, -1, True) + 1e-20)
        else:
            weights = weights * s.scaling
        routing = self._routing(ids, weights)
        return hidden, routing

    def _best(self, grouped: Array) -> Array:
        return self._math.max(grouped, -1, False)


class Family(DecoderFamily):
    """What families with latent attention share."""

    name = "deepseek_v2"
    parse = staticmethod(_parse)
    matrices: ClassVar[tuple[str, ...]] = LATENT_MATRICES
    no_matrices: ClassVar[tuple[str, ...]] = NO_LATENT_MATRICES
