"""Snowflake Arctic: a dense transformer whose experts run beside attention, on what attention is given.

transformers has no Arctic. This follows the modeling code published with the checkpoint (modeling_arctic.py of
Snowflake/snowflake-arctic-instruct; its own MoE rather than DeepSpeed's, whose capacities do not apply): in a layer
with experts x' = x + attention(input_layernorm(x)), and the layer gives
    x' + residual_mlp(residual_layernorm(x')) + experts(post_attention_layernorm(x))
The weights of a token's experts are divided by their sum, but that of a single one stays its probability.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from moeinf.errors import CheckpointError
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.assemble import DecoderFamily
from moeinf.models.layers.attention.grouped import AttentionPart
from moeinf.models.layers.attention_config import NormConfig, Shapes, Sight, mlp_shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, parse_decoder
from moeinf.models.layers.moe_block import Looked, MoeBlock, PlainBlock, Routed, SharedExpert
from moeinf.models.layers.moe_plan import GatedExperts
from moeinf.models.layers.protocol import Attention, Block, Experts, Layers, Router, Weights
from moeinf.models.layers.routers import SoftmaxRouterPart
from moeinf.types import Activation, JsonObject, MoeShape, Profiler, TensorPlan

NAMES = ("w1", "w3", "w2")  # of gate, up and down


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    moe: MoeShape
    moe_layers: tuple[int, ...]
    intermediate_size: int
    parallel: bool  # experts beside attention, and a dense MLP behind it

    @staticmethod
    def parse(config: JsonObject) -> Config:
        f = Fields(config)
        f.only("attention_bias", False, None)
        f.only("quantization", None)
        decoder = parse_decoder(
            f, norm_eps=1e-5, theta=1e6, sight=Sight(f.count("sliding_window", 0, minimum=0) or None)
        )
        parallel, every = f.flag("parallel_attn_mlp_res", False), f.count("moe_layer_frequency", 2)
        f.only("use_residual", parallel, None)
        moe_layers = tuple(i for i in range(decoder.num_layers) if (i + 1) % every == 0)
        if not moe_layers:
            raise CheckpointError("config.json: moe_layer_frequency leaves no layer with experts")
        top_k = f.count("num_experts_per_tok")
        moe = routed_shape(f, ("num_local_experts",), top_k, decoder.num_layers, moe_layers)
        return Config(decoder, moe, moe_layers, f.count("intermediate_size"), parallel)


class ParallelBlock(Routed):
    """Experts whose tokens are routed before attention, on x as it was; behind attention comes the dense MLP."""

    def __init__(self, moe_layer: int, router: Router, experts: Experts, profiler: Profiler, mlp: PlainBlock) -> None:
        super().__init__(moe_layer, router, experts, profiler)
        self._mlp = mlp

    def add_to(self, x: Hidden) -> None:
        self._mlp.add_to(x)
        super().add_to(x)


def _dense(weights: Weights, prefix: str, norm: NormConfig, activation: Activation) -> PlainBlock:
    return PlainBlock(weights.norm(norm), SharedExpert(weights, prefix, names=NAMES, activation=activation))


class Family(DecoderFamily):
    name = "arctic"

    def __init__(self, config: JsonObject) -> None:
        self._config = c = Config.parse(config)
        self.decoder, self.moe = c.decoder, c.moe

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c, attentions, blocks = self._config, list[Attention](), list[Block]()
        for i in range(c.decoder.num_layers):
            prefix, norm = f"model.layers.{i}.block_sparse_moe.", c.decoder.block_norm(i)
            attention: Attention = layers.make(AttentionPart(c.decoder.attention, c.decoder.attention_site(i)))
            if i not in c.moe_layers:
                blocks.append(_dense(layers.weights, f"{prefix}mlp.", norm, c.decoder.activation))
            else:
                normalise, moe_layer = c.moe.top_k > 1, c.moe_layers.index(i)
                router = layers.make(SoftmaxRouterPart(f"{prefix}gate.weight", norm, c.moe.top_k, normalise))
                if c.parallel:
                    residual_norm = replace(norm, name=f"model.layers.{i}.residual_layernorm.weight")
                    mlp = _dense(layers.weights, f"model.layers.{i}.residual_mlp.", residual_norm, c.decoder.activation)
                    block = ParallelBlock(moe_layer, router, experts, profiler, mlp)
                    blocks.append(block)
                    attention = Looked(block, attention)
                else:
                    blocks.append(MoeBlock(moe_layer, router, experts, profiler))
            attentions.append(attention)
        return Decoder(c.decoder, layers, blocks, experts, profiler, attentions)

    def block_shapes(self) -> Shapes:
        c, shapes = self._config, Shapes()
        hidden = c.decoder.attention.hidden_size
        for i in range(c.decoder.num_layers):
            layer = f"model.layers.{i}."
            if i not in c.moe_layers:
                shapes |= mlp_shapes(hidden, c.intermediate_size, f"{layer}block_sparse_moe.mlp.", NAMES)
                continue
            shapes[f"{layer}block_sparse_moe.gate.weight"] = (c.moe.experts_of(c.moe_layers.index(i)), hidden)
            if c.parallel:
                shapes |= mlp_shapes(hidden, hidden, f"{layer}residual_mlp.", NAMES)
                shapes[f"{layer}residual_layernorm.weight"] = (hidden,)
        return shapes

    @cached_property
    def tensors(self) -> TensorPlan:
        c = self._config
        blocks = [f"model.layers.{i}.block_sparse_moe." for i in c.moe_layers]
        plan = self.gated_experts(GatedExperts(blocks, c.intermediate_size, NAMES))
        mlps = (name for name in plan.dense if name.split(".")[-2] in NAMES)
        return replace(plan, matrices=plan.matrices.union(mlps))
