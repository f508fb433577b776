"""Mistral Small 4: DeepSeek-V3's latent attention, softmax routing, queries that are sharpened in long contexts.

The factor of queries is 1 up to the trained length, original_max_position_embeddings. Whole checkpoints, whose type is
mistral3, have Pixtral's tower beside it, which sees pictures.
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
from moeinf.models.layers.vision.of_families.pixtral import pixtral_vision
from moeinf.models.layers.vision.vision import seeing
from moeinf.models.text_part import text_part
from moeinf.types import JsonObject


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
    ignored = (r"(vision_tower|multi_modal_projector)\..*",)

    def __init__(self, config: JsonObject) -> None:
        whole = config.get("text_config") is not None
        text = text_part({"tie_word_embeddings": True} | config if whole else config, "language_model.model.")
        if config.get("model_type") == "mistral3":
            Fields(config).within("text_config").only("model_type", "mistral4")
        spec, head_prefix = _parse(text.fields), text.prefix.removesuffix("model.")
        self.take(replace(spec, decoder=spec.decoder.named(prefix=text.prefix, head_prefix=head_prefix)))
        hidden, eps = self.decoder.attention.hidden_size, self.decoder.attention.norm_eps
        self.vision, self.no_vision = seeing(lambda: pixtral_vision(config, hidden, eps))
