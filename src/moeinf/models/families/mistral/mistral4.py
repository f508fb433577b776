"""Mistral Small 4: DeepSeek-V3's latent attention, softmax routing, queries that are sharpened in long contexts.

The factor of queries is 1 up to the trained length, original_max_position_embeddings.
"""

from __future__ import annotations

from dataclasses import replace

from moeinf.models.families.deepseek import deepseek_v2
from moeinf.models.families.deepseek.deepseek_v2 import latent_spec
from moeinf.models.fields import Fields
from moeinf.models.layers.array_math import Array
from moeinf.models.layers.assemble import Spec
from moeinf.models.layers.attention_config import Sharpening
from moeinf.models.layers.latent.mla import parse_latent
from moeinf.models.layers.moe import Moe
from moeinf.models.layers.rope import rope_fields
from moeinf.models.layers.routers import GroupedSoftmaxRouter, best_two


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


class SoftmaxRouter(GroupedSoftmaxRouter):
    """Groups are chosen by the sums of their two best, and weights are scaled in any case."""

    def _best(self, grouped: Array) -> Array:
        return best_two(self._math, grouped)

    def _weighted(self, weights: Array, chosen: Array) -> Array:
        if self._scoring.normalise:
            weights = weights / (self._math.sum(chosen, -1, True) + 1e-20)
        return weights * self._scoring.scaling


class Family(deepseek_v2.Family):
    name = "mistral4"
    parse = staticmethod(_parse)
