"""Granite 4 H: Granite MoE with a shared MLP, whose layers are mostly Mamba-2 (GraniteMoeHybridForCausalLM)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from moeinf.errors import CheckpointError
from moeinf.models.families.mixtral import granitemoeshared
from moeinf.models.families.mixtral.granitemoe import Config
from moeinf.models.fields import Fields
from moeinf.models.layers.attention_config import Shapes, attention_shapes, attention_workspace
from moeinf.models.layers.protocol import Attention, Layers
from moeinf.models.layers.recurrent.mamba_config import MambaConfig, mamba_shapes, mamba_workspace, refuse_step_limits
from moeinf.types import Workspace


def _parse(f: Fields) -> Config:
    c = replace(Config.parse(f), shared_intermediate_size=f.count("shared_intermediate_size", 1024))
    f.only("position_embedding_type", None, "nope", "rope")
    if f.get("position_embedding_type") == "rope":
        return c
    return replace(c, decoder=replace(c.decoder, attention=replace(c.decoder.attention, rope=None)))


def _parse_mamba(f: Fields, hidden_size: int, norm_eps: float) -> MambaConfig:
    f.only("mamba_proj_bias", False, None)
    refuse_step_limits(f)
    heads, inner = f.count("mamba_n_heads", 128), f.count("mamba_expand", 2) * hidden_size
    head_dim = inner // heads if f.get("mamba_d_head") in (None, "auto") else f.count("mamba_d_head")
    if heads * head_dim != inner:
        raise CheckpointError(
            f"config.json: mamba_n_heads {heads} of mamba_d_head {head_dim} are not mamba_expand times hidden_size, "
            f"which is {inner}"
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


class Family(granitemoeshared.Family):
    name = "granitemoehybrid"
    parse = staticmethod(_parse)

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        f, a = Fields(config), self.decoder.attention
        self._mamba = _parse_mamba(f, a.hidden_size, a.norm_eps)
        self._recurrent = _recurrent_layers(f, self.decoder.num_layers)

    def attention(self, layers: Layers) -> list[Attention]:
        d = self.decoder
        return [
            layers.mamba2(self._mamba, d.attention_site(i, "mamba"))
            if i in self._recurrent
            else layers.attention(d.attention, d.attention_site(i))
            for i in range(d.num_layers)
        ]

    def attention_shapes(self) -> Shapes:
        shapes = Shapes()
        for i in range(self.decoder.num_layers):
            layer = f"model.layers.{i}."
            shapes |= (
                mamba_shapes(self._mamba, f"{layer}mamba.")
                if i in self._recurrent
                else attention_shapes(self.decoder.attention, f"{layer}self_attn.")
            )
        return shapes

    @property
    def attention_workspace(self) -> Workspace:
        return attention_workspace(self.decoder.attention) | mamba_workspace(self._mamba)

    @property
    def cache_numbers(self) -> int:
        a, attending = self.decoder.attention, self.decoder.num_layers - len(self._recurrent)
        return 2 * attending * a.num_kv_heads * a.head_dim

    @property
    def state_bytes(self) -> int:
        return len(self._recurrent) * self._mamba.state_bytes
