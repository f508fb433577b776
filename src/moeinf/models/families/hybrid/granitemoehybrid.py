"""Granite 4 H: Granite MoE with a shared MLP, whose layers are mostly Mamba-2 (GraniteMoeHybridForCausalLM)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from moeinf.errors import CheckpointError
from moeinf.models.activations import silu_alone
from moeinf.models.families.mixtral import granitemoeshared
from moeinf.models.families.mixtral.granitemoe import Config
from moeinf.models.family import MixedDecoderFamily
from moeinf.models.fields import Fields
from moeinf.models.layers.protocol import Attention, Layers
from moeinf.models.layers.recurrent.mamba_config import MambaConfig, mamba_shapes, mamba_workspace, refuse_step_limits
from moeinf.models.layers.recurrent.mixed import MixedLayers


def _parse(f: Fields) -> Config:
    f.only("position_embedding_type", None, "nope", "rope")
    c = Config.parse(f) if f.get("position_embedding_type") == "rope" else Config.parse(f, rope=None)
    return replace(c, shared_intermediate_size=f.count("shared_intermediate_size", 1024))


def _parse_mamba(f: Fields, hidden_size: int, norm_eps: float) -> MambaConfig:
    f.only("mamba_proj_bias", False, None)
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
    )


def _recurrent_layers(f: Fields, num_layers: int) -> frozenset[int]:
    kinds = f.kinds("layer_types", num_layers, "mamba", "linear_attention", "attention", "full_attention")
    if kinds is None:
        return frozenset(range(num_layers))
    return frozenset(i for i, kind in enumerate(kinds) if kind in ("mamba", "linear_attention"))


class Family(MixedDecoderFamily, granitemoeshared.Family):
    name = "granitemoehybrid"
    parse = staticmethod(_parse)

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        f, a = Fields(config), self.decoder.attention
        self._mamba = _parse_mamba(f, a.hidden_size, a.norm_eps)
        self.mixed = MixedLayers(
            self.decoder,
            _recurrent_layers(f, self.decoder.num_layers),
            "mamba",
            partial(mamba_shapes, self._mamba),
            mamba_workspace(self._mamba),
            self._mamba.state_bytes,
        )

    def attention(self, layers: Layers) -> list[Attention]:
        return self.mixed.attention(layers, lambda site: layers.mamba2(self._mamba, site))
