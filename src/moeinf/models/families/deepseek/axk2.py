"""A.X K2: DeepSeek-V3.2 with gates behind norms and behind heads (AXK2ForCausalLM)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from moeinf.models.families.deepseek import deepseek_v32
from moeinf.models.families.deepseek.deepseek_v32 import parse_indexed
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.attention_config import NormConfig, Shapes
from moeinf.models.layers.decoder import LayerNorms
from moeinf.models.layers.latent.indexed import IndexedLatentAttention, Selection
from moeinf.models.layers.latent.mla import LatentConfig, LatentGate
from moeinf.models.layers.moe import BlockSite, Moe
from moeinf.models.layers.protocol import Layers, Weights
from moeinf.models.layers.routers import SigmoidRouter

_ATTENTION, _BLOCK = "input_layernorm", "post_attention_layernorm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(deepseek_v32.Config):
    gate_rank: int  # what the gates of norms go through


def _parse(f: Fields) -> Config:
    choosing = (True,) * f.count("num_hidden_layers", maximum=MOST_LAYERS)
    f.present("q_lora_rank")
    c = parse_indexed(f, choosing, norm_eps=1e-6, interleaved=False, first_dense=1)
    decoder = c.decoder.named(norms=LayerNorms(attention=f"{_ATTENTION}.norm"))
    gated = {
        i: replace(mixer, gate=LatentGate("queries"))
        for i, mixer in c.mixers.items()
        if isinstance(mixer, LatentConfig)
    }
    blocks = replace(c.blocks, router=Router) if isinstance(c.blocks, Moe) else c.blocks
    return Config(decoder, blocks, gated, index=c.index, gate_rank=f.count("gated_norm_rank", 16))


def gated_norm(weights: Weights, prefix: str, eps: float) -> Callable[[Hidden], Hidden]:
    """y sigmoid(W_2 silu(W_1 y)), with y = norm(x). prefix: of the tensors."""
    norm, math = weights.norm(NormConfig(f"{prefix}.norm.weight", eps)), weights.math
    into, out_of = (weights.linear(f"{prefix}.W_{name}.weight") for name in ("down", "up"))

    def gated(x: Hidden) -> Hidden:
        y = norm(x)
        return y * math.sigmoid(out_of(math.silu(into(y))))

    return gated


class Router(SigmoidRouter):
    outside = 0.0  # so that an expert outside of the groups may be chosen before one of them

    def __init__(self, layers: Layers, moe: Moe, site: BlockSite) -> None:
        norm = site.norm
        assert norm is not None
        inner = replace(norm, name=norm.name.replace(_BLOCK, f"{_BLOCK}.norm"))
        super().__init__(layers, moe, replace(site, norm=inner))
        self._norm = gated_norm(layers.weights, norm.name.removesuffix(".weight"), norm.eps)


class Family(deepseek_v32.Family):
    name = "axk2"
    parse = staticmethod(_parse)
    spec: Config

    def layer(self, layers: Layers, i: int, selection: Selection) -> IndexedLatentAttention:
        d = self.decoder
        norm = gated_norm(layers.weights, f"{d.layer(i)}{_ATTENTION}", d.attention.norm_eps)
        return IndexedLatentAttention(layers, d, self.latent_of(i), self.spec.index, i, selection, norm)

    @cached_property
    def dense(self) -> Shapes:
        c, shapes = self.spec, super().dense
        hidden, prefix = c.decoder.attention.hidden_size, f"{c.decoder.prefix}layers."
        gated = [f"{prefix}{i}.{_ATTENTION}" for i in range(c.decoder.num_layers)]
        assert isinstance(c.blocks, Moe)
        for i in c.blocks.moe_layers:  # the norms of dense layers have no gates
            gated.append(f"{prefix}{i}.{_BLOCK}")
            shapes[f"{gated[-1]}.norm.weight"] = shapes.pop(f"{gated[-1]}.weight")
        for norm in gated:
            shapes[f"{norm}.W_down.weight"] = (c.gate_rank, hidden)
            shapes[f"{norm}.W_up.weight"] = (hidden, c.gate_rank)
        return shapes
