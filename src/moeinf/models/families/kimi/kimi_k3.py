"""Kimi K3: Kimi Linear between attention residuals, with narrower experts (arXiv 2607.24653), and a tower that sees.

Decays are bounded, latent attention has a gate of values, and MLPs have SiTU between their matrices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from moeinf.models.activations import SILU
from moeinf.models.families.kimi import kimi_linear
from moeinf.models.families.kimi.kimi_k25 import VISION
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import Connections, Spec
from moeinf.models.layers.attention_config import NormConfig, Shapes
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.latent.mla import LatentConfig, LatentGate
from moeinf.models.layers.moe import BlockSite, Latent, MlpForm, Moe
from moeinf.models.layers.moe_plan import GatedExperts
from moeinf.models.layers.protocol import Weights
from moeinf.models.layers.recurrent.kda import KdaConfig, below_zero
from moeinf.models.layers.streams.raw_residual import ResidualConnections
from moeinf.models.layers.vision.moonvit import Shown, moonvit
from moeinf.models.layers.vision.vision import Titled, seeing
from moeinf.models.text_part import TextIn
from moeinf.models.widened import widened
from moeinf.types import ExpertForm, JsonObject

_END = "<|media_end|>"
_OF_KDA = ("gate_lower_bound", "use_full_rank_gate")


def _parse(f: Fields) -> Spec:
    f.fixed(topk_method="noaux_tc")
    f.only("hidden_act", "situ", *SILU, None)
    f.present("attn_res_block_size", "routed_expert_hidden_size", "mla_use_output_gate")
    own = f.within("linear_attn_config")
    spec = kimi_linear.parse_with(f.replaced(hidden_act=None), _OF_KDA, lambda kda: _kda(own, kda))
    latent_size, blocks = f.count("routed_expert_hidden_size", 0), spec.blocks
    if latent_size:
        f.present("latent_moe_use_norm")
    normed = latent_size > 0 and f.flag("latent_moe_use_norm", False)
    blocks = widened(LatentMoe, blocks, latent_size=latent_size, normed=normed)
    if f.get("hidden_act") == "situ":
        f.present("activation_situ_beta", "activation_situ_linear_beta")
        caps = f.number("activation_situ_beta"), f.number("activation_situ_linear_beta", 0.0, zero=True)
        form = ExpertForm("softcapped", gate_limit=caps[0], limit=caps[1])
        blocks = replace(blocks, form=MlpForm(caps=caps), expert_form=form)
    gate = LatentGate("values") if f.flag("mla_use_output_gate", False) else None
    gated = {i: replace(each, gate=gate) for i, each in spec.mixers.items() if isinstance(each, LatentConfig)}
    every = f.count("attn_res_block_size", 0)
    return Spec(
        replace(spec.decoder, replaces=every > 0),
        blocks,
        {**spec.mixers, **gated},
        ResidualConnections(every) if every else Connections(),
    )


def _kda(f: Fields, kda: KdaConfig) -> KdaConfig:
    """Published decays are filled up with zeros to the size of a head."""
    f.present(*_OF_KDA)
    bound = f.get("gate_lower_bound")
    return replace(
        kda,
        whole="g" if f.flag("use_full_rank_gate", False) else "",
        lower_bound=None if bound is None else below_zero(f, "gate_lower_bound", bound),
        decay_numbers=max(kda.num_heads, kda.head_dim),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentMoe(Moe):
    latent_size: int  # that routed experts compute in; 0: the model's own
    normed: bool  # what experts add up to has a norm, before it is widened

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        shapes, hidden, narrow = Moe.shapes(self, decoder), decoder.attention.hidden_size, self.latent_size
        for i in self.moe_layers if narrow else ():
            prefix = f"{decoder.layer(i)}{self.names.block}routed_expert_"
            shapes |= {f"{prefix}down_proj.weight": (narrow, hidden), f"{prefix}up_proj.weight": (hidden, narrow)}
            shapes |= {f"{prefix}norm.weight": (narrow,)} if self.normed else {}
        return shapes

    def experts(self, decoder: DecoderConfig) -> GatedExperts:
        return replace(Moe.experts(self, decoder), hidden_size=self.latent_size)

    def latent(self, weights: Weights, decoder: DecoderConfig, site: BlockSite) -> Latent | None:
        if not self.latent_size:
            return None
        prefix, eps = f"{site.block}routed_expert_", decoder.attention.norm_eps
        into, out_of = (weights.linear(f"{prefix}{name}_proj.weight") for name in ("down", "up"))
        norm = weights.norm(NormConfig(f"{prefix}norm.weight", eps) if self.normed else None)
        return into, lambda found: out_of(norm(found))


class Family(kimi_linear.Family):
    name = "kimi_k3"
    divisible = False  # states that blocks have left
    parse = staticmethod(_parse)
    ignored = (VISION,)
    no_matrices: ClassVar[tuple[str, ...]] = (*kimi_linear.Family.no_matrices, "_res_proj.weight")
    text = TextIn("language_model.model.", "language_model.")

    def __init__(self, config: JsonObject) -> None:
        super().__init__(config)
        f, hidden_size = Fields(config), self.decoder.attention.hidden_size
        self.vision, self.no_vision = seeing(lambda: moonvit(f, hidden_size, _shown(f)))


def _shown(f: Fields) -> Shown:
    """Pictures behind their sizes. Raises CheckpointError for a tower of which config.json does not tell all."""
    f.within("vision_config").present("norm_type", "mm_projector_type", "qkv_hidden_size", "pos_emb_interpolation_mode")
    f.within("vision_config").present("attn_bias", "linear_bias", "patch_embed_proj_bias")
    token = f.count("media_placeholder_token_id", 163605)
    layout = Titled("<|media_begin|>", lambda height, width: f"image {width}x{height}", "<|media_content|>", _END)
    return Shown(token, layout, variable="image_prompts")
