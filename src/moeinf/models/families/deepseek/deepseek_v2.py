"""DeepSeek-V2 and V2-Lite: latent attention; softmax routing within groups, shared experts (arXiv 2405.04434)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.latent.mla import LATENT_MATRICES, NO_LATENT_MATRICES, LatentConfig, parse_latent
from moeinf.models.layers.moe import MlpForm, Moe
from moeinf.models.layers.routers import GroupedSoftmaxRouter


def latent_spec(decoder: DecoderConfig, latent: LatentConfig, blocks: Moe) -> Spec:
    """Of a family with latent attention in every layer."""
    return Spec(decoder, blocks, dict.fromkeys(range(decoder.num_layers), latent))


def _parse(f: Fields) -> Spec:
    f.only("scoring_func", "softmax", None)
    f.only("topk_method", "greedy", "group_limited_greedy", None)
    f.only("rope_interleave", True, None)
    decoder, latent = parse_latent(f, interleaved=True)
    blocks = Moe.parse(f, decoder.num_layers, router=GroupedSoftmaxRouter, normalise=False, corrected=False)
    blocks = replace(blocks, form=MlpForm(f.flag("mlp_bias", False)))
    if f.get("topk_method") != "group_limited_greedy":
        blocks = blocks.without_groups()
    return latent_spec(decoder, latent, blocks)


class Family(DecoderFamily):
    """What families with latent attention share."""

    name = "deepseek_v2"
    parse = staticmethod(_parse)
    matrices: ClassVar[tuple[str, ...]] = LATENT_MATRICES
    no_matrices: ClassVar[tuple[str, ...]] = NO_LATENT_MATRICES
