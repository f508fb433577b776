"""Jamba (arXiv 2403.19887): Mamba in most layers, attention without positions in the others, experts in every other
layer (JambaForCausalLM)."""

from __future__ import annotations

from moeinf.errors import CheckpointError
from moeinf.models.activations import silu_alone
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.decoder import LayerNorms, parse_decoder
from moeinf.models.layers.moe import BlockNames, Moe, Scoring
from moeinf.models.layers.recurrent.mamba1 import Mamba1Config, mamba1_mixer
from moeinf.models.layers.routers import softmax_router

_NAMES = BlockNames("feed_forward.", gate="router.weight")


def _parse(f: Fields) -> Spec:
    silu_alone(f)  # which Mamba has, too
    f.fixed(attention_bias=False)
    f.only("sliding_window", None)
    decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4, rope=None)
    decoder = decoder.named(norms=LayerNorms(block="pre_ff_layernorm"), last_norm="final_layernorm")
    moe_layers = _every(f, "expert_layer", decoder.num_layers, 2, 1)
    if not moe_layers:
        raise CheckpointError(f"{f.where}: expert_layer_offset leaves no layer with experts")
    hidden = decoder.attention.hidden_size
    mixer = mamba1_mixer(
        Mamba1Config(
            hidden,
            f.count("mamba_expand", 2) * hidden,
            f.count("mamba_d_state", 16),
            -(-hidden // 16) if f.get("mamba_dt_rank") in (None, "auto") else f.count("mamba_dt_rank"),
            f.count("mamba_d_conv", 4, minimum=2),
            decoder.attention.norm_eps,
            f.flag("mamba_conv_bias", True),
            f.flag("mamba_proj_bias", False),
        )
    )
    size, top_k = f.count("intermediate_size"), f.count("num_experts_per_tok", 2)
    moe = routed_shape(f, ("num_experts", "num_local_experts"), top_k, decoder.num_layers, moe_layers)
    scoring = Scoring(normalise=False, corrected=False)
    attending = _every(f, "attn_layer", decoder.num_layers, 8, 4)
    return Spec(
        decoder,
        Moe(moe, moe_layers, size, size, softmax_router, scoring, names=_NAMES),
        {i: mixer for i in range(decoder.num_layers) if i not in attending},
    )


def _every(f: Fields, what: str, num_layers: int, period: int, offset: int) -> tuple[int, ...]:
    """The layers that one field counts, from that of the other on."""
    period, offset = f.count(f"{what}_period", period), f.count(f"{what}_offset", offset, minimum=0)
    if offset >= period:
        raise CheckpointError(f"{f.where}: {what}_offset {offset} is not below {what}_period {period}")
    return tuple(i for i in range(num_layers) if i % period == offset)


class Family(DecoderFamily):
    name = "jamba"
    parse = staticmethod(_parse)
