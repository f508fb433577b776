"""MiniMax-Text-01 and M1: lightning attention in most layers, Mixtral's attention and experts (arXiv 2501.08313).

What a layer adds to is the state behind its norm, and both are scaled (MiniMaxForCausalLM).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from moeinf.models.activations import silu_alone
from moeinf.models.families.mixtral.mixtral import NAMES
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention.grouped import AttentionPart
from moeinf.models.layers.attention_config import Sight
from moeinf.models.layers.decoder import Decoder, parse_decoder
from moeinf.models.layers.kv_cache import LayerState, Span
from moeinf.models.layers.moe import BlockSite, Moe, all_routed
from moeinf.models.layers.protocol import Attention, Experts, Layers, Positions, Router, Weights
from moeinf.models.layers.recurrent.lightning import Lightning, LightningConfig, lightning_shapes, lightning_workspace
from moeinf.models.layers.recurrent.mixer import Recurrent
from moeinf.models.layers.rope import whole_heads
from moeinf.models.layers.routers import softmax_router
from moeinf.types import Expected, JsonObject, Profiler, TensorPlan


@dataclass(frozen=True, slots=True)
class Scales:
    """x becomes state * norm(x) + added * layer(norm(x))."""

    state: float
    added: float

    @staticmethod
    def parse(f: Fields, kind: str) -> Scales:
        return Scales(f.number(f"{kind}_alpha_factor", 1.0), f.number(f"{kind}_beta_factor", 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Spec):
    lightning: LightningConfig
    block_size: int  # tokens that published code computes at once
    linear_layers: frozenset[int]  # that have lightning attention
    full: Scales
    linear: Scales
    mlp: Scales


def _parse(f: Fields) -> Config:
    silu_alone(f)  # which lightning attention has, too
    f.only("attention_bias", False, None)
    head_dim = f.count("head_dim", f.count("hidden_size") // f.count("num_attention_heads"), minimum=2)
    whole_heads(f)  # rotary_dim says what is rotated
    window, partial_rotary = f.count("sliding_window", 0) or None, f.count("rotary_dim", head_dim) / head_dim
    d = parse_decoder(f, norm_eps=1e-5, theta=1e6, sight=Sight(window), partial=partial_rotary)
    kinds = f.kinds("layer_types", d.num_layers, "full_attention", "linear_attention") or tuple(
        "linear_attention" if i % 2 else "full_attention" for i in range(d.num_layers)
    )
    moe = routed_shape(f, ("num_local_experts", "num_experts"), f.count("num_experts_per_tok"), d.num_layers)
    full, linear, mlp = (Scales.parse(f, kind) for kind in ("full_attn", "linear_attn", "mlp"))
    return Config(
        d,
        all_routed(moe, f.count("intermediate_size"), softmax_router, NAMES),
        lightning=LightningConfig(d.attention.hidden_size, d.attention.num_heads, head_dim, d.num_layers),
        block_size=f.count("block_size", 256, maximum=4096),
        linear_layers=frozenset(i for i, kind in enumerate(kinds) if kind == "linear_attention"),
        full=full,
        linear=linear,
        mlp=mlp,
    )


class Scaled:
    """The attention of a layer, of a site without a norm, whose residual is scales.added / scales.state."""

    def __init__(self, weights: Weights, config: Config, layer: int, attention: Attention, scales: Scales) -> None:
        norm = config.decoder.attention_site(layer).front
        self._norm = weights.norm(replace(config.decoder.block_norm(layer), name=norm))
        self._attention, self._scales = attention, scales

    def new_state(self, capacity: int) -> LayerState:
        return self._attention.new_state(capacity)

    def add_rows(self, x: Hidden, spans: Sequence[Span[Positions]]) -> None:
        x[...] = self._norm(x)
        self._attention.add_rows(x, spans)
        x *= self._scales.state


class ScaledBlock:
    """The experts of a layer, and the state behind the norm in front of them."""

    def __init__(self, moe_layer: int, router: Router, experts: Experts, profiler: Profiler, scales: Scales) -> None:
        self.moe_layer, self.router = moe_layer, router
        self._experts, self._profiler, self._scales = experts, profiler, scales

    def add_to(self, x: Hidden) -> None:
        hidden, routing = self.router(x)
        self._profiler.lap("router")
        x[...] = hidden * (self._scales.state / self._scales.added)
        self._experts.run(self.moe_layer, hidden, routing, x)
        x *= self._scales.added


class Family(DecoderFamily):
    name = "minimax"
    spec: Config
    renamed: ClassVar[Mapping[str, str]] = {r"\.mlp\.": ".block_sparse_moe."}
    matrices = (".qkv_proj.weight", ".output_gate.weight")

    def __init__(self, config: JsonObject) -> None:
        self.take(_parse(Fields(config)))
        c = self.spec.lightning
        shapes, memory = partial(lightning_shapes, c), lightning_workspace(c)
        mixer = Recurrent("self_attn", shapes, memory, c.state_bytes, lambda layers, site: Lightning(layers, c, site))
        self.mixers = dict.fromkeys(self.spec.linear_layers, mixer)

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        d, blocks, moe = self.decoder, list[ScaledBlock](), self.spec.blocks
        assert isinstance(moe, Moe)
        for i in range(d.num_layers):
            router = moe.router(layers, moe, BlockSite(i, i, d.layer(i) + moe.names.block, d.block_norm(i)))
            blocks.append(ScaledBlock(i, router, experts, profiler, self.spec.mlp))
        return Decoder(d, layers, blocks, experts, profiler, self.attention(layers))

    def attention(self, layers: Layers) -> list[Attention]:
        return [self._scaled(layers, i) for i in range(self.decoder.num_layers)]

    def _scaled(self, layers: Layers, layer: int) -> Attention:
        c, d = self.spec, self.decoder
        linear = layer in c.linear_layers
        scales = c.linear if linear else c.full
        site = replace(d.attention_site(layer), norm=None, residual=scales.added / scales.state)
        attention = Lightning(layers, c.lightning, site) if linear else layers.make(AttentionPart(d.attention, site))
        return Scaled(layers.weights, c, layer, attention, scales)

    def plan(self) -> TensorPlan:
        plan = super().plan()
        follows = rf"{re.escape(self.decoder.prefix)}layers\.({'|'.join(map(str, sorted(self.spec.linear_layers)))})"
        follows += r"\.self_attn\.(slope_rate|query_decay|key_decay|diagonal_decay)"
        return replace(plan, follows={**plan.follows, follows: self._decay})

    def _decay(self, name: str) -> list[Expected]:
        """A table of a layer of linear attention."""
        layer, _, kind = name.removeprefix(f"{self.decoder.prefix}layers.").split(".")
        return [Expected(self.spec.lightning.decays(int(layer), self.spec.block_size)[kind], error=1e-6)]
