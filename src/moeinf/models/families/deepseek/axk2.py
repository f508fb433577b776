"""A.X K2: DeepSeek-V3.2 with gates behind norms and behind heads (AXK2ForCausalLM)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from moeinf.models.families.deepseek import deepseek_v32
from moeinf.models.families.deepseek.deepseek_v32 import parse_indexed
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.assemble import Mixer, Spec
from moeinf.models.layers.attention_config import NormConfig, Shapes
from moeinf.models.layers.decoder import DecoderConfig, LayerNorms, ModuleNames
from moeinf.models.layers.latent.indexed import IndexedLatent
from moeinf.models.layers.latent.mla import LatentGate
from moeinf.models.layers.moe import BlockSite, Moe
from moeinf.models.layers.protocol import Layers, Weights
from moeinf.models.layers.routers import SigmoidRouter

_ATTENTION, _BLOCK = "input_layernorm", "post_attention_layernorm"


def _parse(f: Fields) -> Spec:
    choosing = (True,) * f.count("num_hidden_layers", maximum=MOST_LAYERS)
    f.present("q_lora_rank")
    spec = parse_indexed(f, choosing, norm_eps=1e-6, interleaved=False, first_dense=1)
    assert isinstance(spec.blocks, Moe)
    rank, mixers = f.count("gated_norm_rank", 16), dict[int, Mixer]()
    for i, mixer in spec.mixers.items():
        assert isinstance(mixer, IndexedLatent)
        gated = (_ATTENTION, _BLOCK) if i in spec.blocks.moe_layers else (_ATTENTION,)
        mixers[i] = GatedLatent(replace(mixer.latent, gate=LatentGate("queries")), mixer.index, gated, rank)
    names = Norms(norms=LayerNorms(attention=f"{_ATTENTION}.norm"), moe_layers=spec.blocks.moe_layers)
    return Spec(replace(spec.decoder, names=names), replace(spec.blocks, router=Router), mixers)


@dataclass(frozen=True, slots=True)
class Norms(ModuleNames):
    moe_layers: tuple[int, ...] = ()  # whose blocks have gated norms in front

    def module(self, layer: int, name: str) -> str:
        inner = ".norm" if name == _BLOCK and layer in self.moe_layers else ""
        return ModuleNames.module(self, layer, name) + inner


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
        super().__init__(layers, moe, site)
        assert site.norm is not None
        self._norm = gated_norm(layers.weights, site.norm.name.removesuffix(".norm.weight"), site.norm.eps)


@dataclass(frozen=True, slots=True)
class GatedLatent(IndexedLatent):
    gated: tuple[str, ...]  # norms of the layer
    rank: int  # what their gates go through

    def shapes(self, decoder: DecoderConfig, layer: int) -> Shapes:
        shapes, hidden = IndexedLatent.shapes(self, decoder, layer), decoder.attention.hidden_size
        for name in self.gated:
            shapes[f"{decoder.layer(layer)}{name}.W_down.weight"] = (self.rank, hidden)
            shapes[f"{decoder.layer(layer)}{name}.W_up.weight"] = (hidden, self.rank)
        return shapes

    def norm(self, layers: Layers, decoder: DecoderConfig, layer: int) -> Callable[[Hidden], Hidden]:
        return gated_norm(layers.weights, f"{decoder.layer(layer)}{_ATTENTION}", decoder.attention.norm_eps)


class Family(deepseek_v32.Family):
    name = "axk2"
    parse = staticmethod(_parse)
