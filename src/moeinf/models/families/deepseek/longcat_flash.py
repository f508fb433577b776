"""LongCat-Flash: layers of two latent attentions and two MLPs, with experts beside the second half (arXiv 2509.01322).

Each half is a decoder layer here. The first half routes its tokens, and the second adds what experts gave. Some of the
experts that a token may be routed to give it back as it was: they have no weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from moeinf.models.families.deepseek import deepseek_v2
from moeinf.models.families.deepseek.deepseek_v2 import latent_spec
from moeinf.models.fields import MOST_LAYERS, Fields, routed_shape
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.assemble import Spec
from moeinf.models.layers.attention_config import MLP_NAMES, Shapes, mlp_shapes
from moeinf.models.layers.decoder import DecoderConfig, ModuleNames
from moeinf.models.layers.latent.mla import parse_latent
from moeinf.models.layers.moe import Moe, Scoring
from moeinf.models.layers.moe_block import GatedMLP, SharedExpert
from moeinf.models.layers.moe_plan import GatedExperts
from moeinf.models.layers.protocol import Block, Experts, Layers
from moeinf.models.layers.routers import SigmoidRouter
from moeinf.types import Profiler, TensorPlan

_MTP = r"model\.mtp\..*"  # further layers that guess tokens ahead: kept, and not used


def _parse(f: Fields) -> Spec:
    f.fixed(router_bias=False, zero_expert_type="identity", norm_topk_prob=False)
    f.fixed(mla_scale_q_lora=True, mla_scale_kv_lora=True)
    f.present("q_lora_rank", "zero_expert_num", "routed_scaling_factor")
    num_layers = f.count("num_layers", maximum=MOST_LAYERS // 2)
    f.only("num_hidden_layers", 2 * num_layers, None)
    rotated, plain = f.count("qk_rope_head_dim"), f.count("qk_nope_head_dim")
    f.only("qk_head_dim", plain + rotated, None)
    f.only("head_dim", rotated, None)  # transformers' other name for it
    inner = f.replaced(num_hidden_layers=2 * num_layers)
    decoder, latent = parse_latent(inner, interleaved=True, norm_eps=1e-5, theta=1e7)
    a = decoder.attention
    attention = a.scored(scale=a.scale * (a.hidden_size / f.count("q_lora_rank")) ** 0.5)
    blocks = HalvesMoe(
        routed_shape(
            f, ("n_routed_experts", "num_local_experts"), f.count_of("moe_topk", "num_experts_per_tok"), num_layers
        ),
        tuple(range(0, 2 * num_layers, 2)),
        f.count_of("ffn_hidden_size", "intermediate_size"),
        f.count_of("expert_ffn_hidden_size", "moe_intermediate_size"),
        SigmoidRouter,  # FirstHalf has its own
        scoring=Scoring(False, scaling=f.number("routed_scaling_factor")),
        zero_experts=f.count("zero_expert_num", 0, minimum=0),
    )
    latent = replace(latent, latent_scale=(a.hidden_size / latent.rank) ** 0.5)
    return latent_spec(replace(decoder, attention=attention, names=Halves()), latent, blocks)


class Halves(ModuleNames):
    """Layers 2 i and 2 i + 1 are stored as the halves of layer i, whose modules are lists of two."""

    def module(self, layer: int, name: str) -> str:
        return f"{self.prefix}{self.layers}.{layer // 2}.{name}.{layer % 2}"


class FirstHalf:
    """x += mlp(norm(x)), and of the same norm(x) what the experts give, which `given` keeps for the second half.

    Softmax over all experts; chosen is by score + bias, weighted by the scores. Where a token is routed to an expert
    that gives it back, one of its other experts stands in the routing with a weight of 0, so that none is read for it.
    """

    def __init__(
        self, decoder: DecoderConfig, blocks: Moe, moe_layer: int, layers: Layers, experts: Experts, profiler: Profiler
    ) -> None:
        weights, prefix = layers.weights, _block(decoder, moe_layer)
        self.moe_layer, self.given = moe_layer, weights.math.zeros((1,))
        moe, self._scaling = blocks.moe, blocks.scoring.scaling
        self._top_k, self._last = moe.top_k, moe.experts_of(moe_layer) - 1
        self._weights, self._experts, self._profiler = weights, experts, profiler
        self._norm = weights.norm(decoder.block_norm(2 * moe_layer))
        self._gate = weights.linear(f"{prefix}router.classifier.weight")
        self._bias = weights.vector(f"{prefix}router.e_score_correction_bias")
        mlp = f"{decoder.module(2 * moe_layer, 'mlps')}."
        self._mlp = SharedExpert(weights, mlp, activation=decoder.activation)

    def router(self, x: Hidden) -> tuple[Hidden, object]:
        hidden, routing, _ = self._routed(x)
        return hidden, routing

    def add_to(self, x: Hidden) -> None:
        hidden, routing, share = self._routed(x)
        self._profiler.lap("router")
        self.given = hidden * share
        self._experts.run(self.moe_layer, hidden, routing, self.given)
        x += self._mlp(hidden)

    def _routed(self, x: Hidden) -> tuple[Hidden, object, Hidden]:
        """norm(x), the routing, and how much of it each token is given back, [tokens, 1]."""
        math, hidden = self._weights.math, self._norm(x)
        scores = math.softmax(self._gate(hidden))
        ids = math.top_k(scores + self._bias, self._top_k)
        weights, computes = math.take(scores, ids) * self._scaling, ids <= self._last
        other = math.max(ids * computes, -1, True)
        routing = self._weights.routing(math.where(computes, ids, other), math.where(computes, weights, 0.0))
        return hidden, routing, math.sum(math.where(computes, weights * 0, weights), -1, True)


class SecondHalf:
    """x += mlp(norm(x)) + what the experts of the first half gave."""

    def __init__(self, first: FirstHalf, mlp: Block) -> None:
        self._first, self._mlp = first, mlp

    def add_to(self, x: Hidden) -> None:
        self._mlp.add_to(x)
        x += self._first.given


@dataclass(frozen=True, slots=True)
class HalvesMoe(Moe):
    zero_experts: int = 0  # that give back what they are given

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        hidden, shapes = decoder.attention.hidden_size, Shapes()
        for i in range(decoder.num_layers):
            shapes |= mlp_shapes(hidden, self.intermediate_size, f"{decoder.module(i, 'mlps')}.")
        for layer in range(self.moe.num_layers):
            router, chosen = f"{_block(decoder, layer)}router.", self.moe.experts_of(layer) + self.zero_experts
            shapes |= {f"{router}classifier.weight": (chosen, hidden), f"{router}e_score_correction_bias": (chosen,)}
        return shapes

    def experts(self, decoder: DecoderConfig) -> GatedExperts:
        blocks = [_block(decoder, layer) for layer in range(self.moe.num_layers)]
        return GatedExperts(blocks, self.moe_intermediate_size, MLP_NAMES)

    def plan(self, decoder: DecoderConfig, dense: Shapes) -> TensorPlan:
        numbers = "|".join(str(self.moe.num_experts + i) for i in range(self.zero_experts))
        zero = rf".*\.mlp\.experts\.({numbers})\..*"  # transformers saves them, though it computes nothing with them
        return replace(Moe.plan(self, decoder, dense), ignored=(zero,))

    def make(self, decoder: DecoderConfig, layers: Layers, experts: Experts, profiler: Profiler) -> list[Block]:
        blocks = list[Block]()
        for layer in range(self.moe.num_layers):
            first, second = FirstHalf(decoder, self, layer, layers, experts, profiler), 2 * layer + 1
            prefix, norm = f"{decoder.module(second, 'mlps')}.", decoder.block_norm(second)
            mlp = GatedMLP(layers.weights, prefix, norm, activation=decoder.activation)
            blocks += [first, SecondHalf(first, mlp)]
        return blocks


def _block(decoder: DecoderConfig, layer: int) -> str:
    return f"{decoder.prefix}layers.{layer}.mlp."


class Family(deepseek_v2.Family):
    name = "longcat_flash"
    divisible = False  # halves share what experts gave, and tensors are numbered by both
    parse = staticmethod(_parse)
    ahead = (_MTP,)
