"""MiniMax-Text-01 and M1: lightning attention in most layers, Mixtral's attention and experts (arXiv 2501.08313).

What a layer adds to is the state behind its norm, and both are scaled (MiniMaxForCausalLM). transformers saves configs
in other words than these models were published with.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from moeinf.models.families.mixtral.mixtral import NAMES
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.assemble import CommonAttention, Connections, DecoderFamily, Spec
from moeinf.models.layers.attention_config import NormConfig, Sight
from moeinf.models.layers.decoder import Decoder, DecoderConfig, parse_decoder
from moeinf.models.layers.kv_cache import LayerState, Span
from moeinf.models.layers.moe import BlockSite, Moe, all_routed
from moeinf.models.layers.protocol import Attention, Block, Experts, Layers, Positions, Router, Weights
from moeinf.models.layers.recurrent.lightning import LightningConfig, lightning_mixer
from moeinf.models.layers.recurrent.mixer import Recurrent
from moeinf.models.layers.rope import whole_heads
from moeinf.models.layers.routers import softmax_router
from moeinf.models.widened import widened
from moeinf.types import Expected, Profiler, TensorPlan

_PUBLISHED = ("minimax_m1", "minimax_text_01")
_KINDS = {"full_attn": "full_attention", "linear_attn": "linear_attention", "mlp": "mlp"}  # of scales: as published
_CALLED = {
    f"{saved}_{letter}_factor": f"layernorm_{published}_{letter}"
    for saved, published in _KINDS.items()
    for letter in ("alpha", "beta")
} | {"layer_types": "attn_type_list"}


def _as_saved(f: Fields) -> Fields:
    """A published config in the words of transformers."""
    f.only("postnorm", True)  # else the residual would be the state in front of the norm
    f.fixed(shared_intermediate_size=0)
    attends = f.counts("attn_type_list", f.count("num_hidden_layers"), maximum=1)
    kinds = ["full_attention" if full else "linear_attention" for full in attends]
    values = {saved: f.get(published) for saved, published in _CALLED.items()} | {"layer_types": kinds}
    return f.replaced(**values).renamed(_CALLED)


@dataclass(frozen=True, slots=True)
class Scales:
    """x becomes state * norm(x) + added * layer(norm(x))."""

    state: float
    added: float

    @staticmethod
    def parse(f: Fields, kind: str) -> Scales:
        return Scales(f.number(f"{kind}_alpha_factor", 1.0), f.number(f"{kind}_beta_factor", 1.0))


def _parse(f: Fields) -> Spec:
    f = _as_saved(f) if f.get("model_type") in _PUBLISHED else f
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
    blocks = all_routed(moe, f.count("intermediate_size"), softmax_router, NAMES)
    lightning = LightningConfig(d.attention.hidden_size, d.attention.num_heads, head_dim, d.num_layers, d.activation)
    mixer, layers = lightning_mixer(lightning), [i for i, kind in enumerate(kinds) if kind == "linear_attention"]
    block_size = f.count("block_size", 256, maximum=4096)  # tokens that published code computes at once
    return Spec(
        d,
        widened(ScaledMoe, blocks, scales=mlp),
        dict.fromkeys(layers, mixer),
        ScaledConnections(tuple(linear if i in layers else full for i in range(d.num_layers))),
        amended=partial(_with_decays, lightning=lightning, layers=layers, block_size=block_size),
    )


def _with_decays(plan: TensorPlan, lightning: LightningConfig, layers: list[int], block_size: int) -> TensorPlan:
    """The plan, with tables of the layers of linear attention that follow from their number."""

    def decay(name: str) -> list[Expected]:
        layer, _, kind = name.removeprefix("model.layers.").split(".")
        return [Expected(lightning.decays(int(layer), block_size)[kind], error=1e-6)]

    tables = rf"{re.escape('model.')}layers\.({'|'.join(map(str, layers))})"
    tables += r"\.self_attn\.(slope_rate|query_decay|key_decay|diagonal_decay)"
    return replace(plan, follows={**plan.follows, tables: decay})


class Scaled:
    """The attention of a layer, of a site without a norm, whose residual is scales.added / scales.state."""

    def __init__(self, weights: Weights, norm: NormConfig, attention: Attention, scales: Scales) -> None:
        self._norm, self._attention, self._scales = weights.norm(norm), attention, scales

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


@dataclass(frozen=True, slots=True)
class ScaledMoe(Moe):
    scales: Scales = Scales(1.0, 1.0)

    def routed(
        self, decoder: DecoderConfig, layers: Layers, experts: Experts, profiler: Profiler, site: BlockSite
    ) -> Block:
        return ScaledBlock(site.moe_layer, self.router(layers, self, site), experts, profiler, self.scales)


@dataclass(frozen=True, slots=True)
class ScaledConnections(Connections):
    scales: tuple[Scales, ...]  # of what mixes the tokens of each layer

    def connect(self, spec: Spec, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        d, attention = spec.decoder, list[Attention]()
        for i, mixer in enumerate(spec.all_mixers):
            assert isinstance(mixer, CommonAttention | Recurrent)
            scales, site = self.scales[i], d.attention_site(i)
            bare = replace(site, norm=None, residual=scales.added / scales.state)
            norm = replace(d.block_norm(i), name=site.front)
            attention.append(Scaled(layers.weights, norm, mixer.of_site(layers, bare), scales))
        blocks = spec.blocks.make(d, layers, experts, profiler)
        return Decoder(d, layers, blocks, experts, profiler, attention)


class Family(DecoderFamily):
    name = "minimax"
    parse = staticmethod(_parse)
    renamed = ((r"\.mlp\.", ".block_sparse_moe."),)
    matrices = (".qkv_proj.weight", ".output_gate.weight")
