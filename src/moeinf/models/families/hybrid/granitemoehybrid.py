"""Granite 4 H: Granite MoE with a shared MLP, whose layers are mostly Mamba-2 (GraniteMoeHybridForCausalLM)."""

from __future__ import annotations

from typing import Any

from moeinf.errors import CheckpointError
from moeinf.models.activations import silu_alone
from moeinf.models.families.mixtral import granitemoeshared
from moeinf.models.families.mixtral.granitemoe import parse_granite
from moeinf.models.families.mixtral.granitemoeshared import SharingMoe
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import Spec
from moeinf.models.layers.recurrent.mamba2 import mamba_mixer
from moeinf.models.layers.recurrent.mamba_config import MambaConfig, refuse_step_limits


def _parse(f: Fields) -> Spec:
    f.only("position_embedding_type", None, "nope", "rope")
    features: dict[str, Any] = {} if f.get("position_embedding_type") == "rope" else {"rope": None}
    decoder, moe = parse_granite(f, **features)
    a, layers = decoder.attention, _recurrent_layers(f, decoder.num_layers)
    mamba = mamba_mixer(_parse_mamba(f, a.hidden_size, a.norm_eps))
    return Spec(
        decoder, SharingMoe.beside(moe, f.count("shared_intermediate_size", 1024)), dict.fromkeys(layers, mamba)
    )


def _parse_mamba(f: Fields, hidden_size: int, norm_eps: float) -> MambaConfig:
    silu_alone(f)  # which Mamba has, too
    refuse_step_limits(f)
    heads, inner = f.count("mamba_n_heads", 128), f.count("mamba_expand", 2) * hidden_size
    head_dim = inner // heads if f.get("mamba_d_head") in (None, "auto") else f.count("mamba_d_head")
    if heads * head_dim != inner:
        each = "" if f.get("mamba_d_head") in (None, "auto") else f" of mamba_d_head, {head_dim}"
        raise CheckpointError(
            f"{f.where}: mamba_expand times hidden_size is {inner}, which is not mamba_n_heads, {heads}{each}"
        )
    return MambaConfig(
        hidden_size,
        heads,
        head_dim,
        f.count("mamba_n_groups", 1),
        f.count("mamba_d_state", 256),
        f.count("mamba_d_conv", 4, minimum=2),
        norm_eps,
        f.flag("mamba_conv_bias", True),
        f.flag("mamba_proj_bias", False),
    )


def _recurrent_layers(f: Fields, num_layers: int) -> frozenset[int]:
    kinds = f.kinds("layer_types", num_layers, "linear_attention", "full_attention")
    if kinds is None:
        return frozenset(range(num_layers))
    return frozenset(i for i, kind in enumerate(kinds) if kind == "linear_attention")


class Family(granitemoeshared.Family):
    name = "granitemoehybrid"
    parse = staticmethod(_parse)
