"""Mistral Small 4: DeepSeek-V3's latent attention, softmax routing, queries that are sharpened in long contexts.

The factor of queries is 1 up to the trained length, original_max_position_embeddings.
"""

from __future__ import annotations

from dataclasses import replace

from moeinf.models.families.deepseek import deepseek_v2
from moeinf.models.families.deepseek.deepseek_v2 import latent_spec
from moeinf.models.fields import Fields
from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.assemble import Spec
from moeinf.models.layers.attention_config import Sharpening
from moeinf.models.layers.latent.mla import parse_latent
from moeinf.models.layers.moe import BlockSite, Moe
from moeinf.models.layers.protocol import Layers
from moeinf.models.layers.rope import rope_fields
from moeinf.models.layers.routers import Groups


def _parse(f: Fields) -> Spec:
    r = rope_fields(f)
    f.only("mlp_bias", False, None)
    f.present("n_routed_experts", "routed_scaling_factor")
    rotated, plain = f.count("qk_rope_head_dim"), f.count("qk_nope_head_dim")
    f.only("head_dim", rotated + plain, None)
    decoder, latent = parse_latent(
        f,
        interleaved=f.flag("rope_interleave", True),
        also=("llama_4_scaling_beta", "max_position_embeddings"),
        partial=rotated / (rotated + plain),
    )
    if r.get("llama_4_scaling_beta") != 0:
        r.present("llama_4_scaling_beta", "original_max_position_embeddings")
        sharpening = Sharpening(r.number("llama_4_scaling_beta"), r.count("original_max_position_embeddings"))
        decoder = replace(decoder, attention=decoder.attention.scored(sharpening=sharpening))
    blocks = Moe.parse(f, decoder.num_layers, router=SoftmaxRouter, normalise=True, corrected=False)
    return latent_spec(decoder, latent, blocks)


class SoftmaxRouter:
    """Softmax over all experts; the groups with the largest sums of their two best, and the best k in them."""

    def __init__(self, layers: Layers, moe: Moe, site: BlockSite) -> None:
        weights = layers.weights
        self._top_k, self._scoring = moe.moe.top_k, moe.scoring
        self._math, self._routing = weights.math, weights.routing
        self._norm, self._gate = weights.norm(site.norm), weights.linear(site.block + moe.names.gate)
        self._groups = Groups(weights.math, moe.scoring)

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        s, math = self._scoring, self._math
        hidden = self._norm(x)
        kept = self._groups.kept(math.softmax(self._gate(hidden)), self._best_two, 0.0)
        ids = math.top_k(kept, self._top_k)
        weights = math.take(kept, ids)
        if s.normalise:
            weights = weights / (math.sum(weights, -1, True) + 1e-20)
        return hidden, self._routing(ids, weights * s.scaling)

    def _best_two(self, grouped: Array) -> Array:
        math = self._math
        return math.sum(math.take(grouped, math.top_k(grouped, 2)), -1, False)


class Family(deepseek_v2.Family):
    name = "mistral4"
    parse = staticmethod(_parse)
