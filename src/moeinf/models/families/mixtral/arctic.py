"""Snowflake Arctic: a dense transformer whose experts run beside attention, on what attention is given.

transformers has no Arctic. This follows the modeling code published with the checkpoint (modeling_arctic.py of
Snowflake/snowflake-arctic-instruct; its own MoE rather than DeepSpeed's, whose capacities do not apply): in a layer
with experts x' = x + attention(input_layernorm(x)), and the layer gives
    x' + residual_mlp(residual_layernorm(x')) + experts(post_attention_layernorm(x))
The weights of a token's experts are divided by their sum, but that of a single one stays its probability.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from moeinf.errors import CheckpointError
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import Shapes, Sight, mlp_shapes
from moeinf.models.layers.decoder import DecoderConfig, parse_decoder
from moeinf.models.layers.moe import BlockNames, BlockSite, Moe, Scoring
from moeinf.models.layers.moe_block import PlainBlock, Routed, SharedExpert
from moeinf.models.layers.protocol import Block, Experts, Layers, Router
from moeinf.models.layers.routers import softmax_router
from moeinf.types import Profiler

_MATRICES = ("w1", "w3", "w2")  # gate, up and down
_NAMES = BlockNames("block_sparse_moe.", experts=_MATRICES, dense=("mlp.w1", "mlp.w3", "mlp.w2"))


def _parse(f: Fields) -> Spec:
    f.only("attention_bias", False, None)
    f.only("quantization", None)
    decoder = parse_decoder(f, norm_eps=1e-5, theta=1e6, sight=Sight(f.count("sliding_window", 0, minimum=0) or None))
    parallel, every = f.flag("parallel_attn_mlp_res", False), f.count("moe_layer_frequency", 2)
    f.only("use_residual", parallel, None)
    moe_layers = tuple(i for i in range(decoder.num_layers) if (i + 1) % every == 0)
    if not moe_layers:
        raise CheckpointError("config.json: moe_layer_frequency leaves no layer with experts")
    moe = routed_shape(f, ("num_local_experts",), f.count("num_experts_per_tok"), decoder.num_layers, moe_layers)
    size, scoring = f.count("intermediate_size"), Scoring(normalise=moe.top_k > 1, corrected=False)
    blocks = ArcticMoe(moe, moe_layers, size, size, softmax_router, scoring, names=_NAMES, parallel=parallel)
    return Spec(decoder, blocks)


class ParallelBlock(Routed):
    """Experts whose tokens are routed before attention, on x as it was; behind attention comes the dense MLP."""

    def __init__(self, moe_layer: int, router: Router, experts: Experts, profiler: Profiler, mlp: PlainBlock) -> None:
        super().__init__(moe_layer, router, experts, profiler)
        self._mlp = mlp

    def add_to(self, x: Hidden) -> None:
        self._mlp.add_to(x)
        super().add_to(x)


@dataclass(frozen=True, slots=True)
class ArcticMoe(Moe):
    parallel: bool = False  # experts beside attention, and a dense MLP behind it

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        shapes, hidden = Moe.shapes(self, decoder), decoder.attention.hidden_size
        for layer in map(decoder.layer, self.moe_layers if self.parallel else ()):
            shapes |= mlp_shapes(hidden, hidden, f"{layer}residual_mlp.", _MATRICES)
            shapes[f"{layer}residual_layernorm.weight"] = (hidden,)
        return shapes

    def dense(self, decoder: DecoderConfig, layers: Layers, site: BlockSite) -> Block:
        mlp = SharedExpert(layers.weights, site.block, names=self.names.dense, activation=decoder.activation)
        return PlainBlock(layers.weights.norm(site.norm), mlp)

    def routed(
        self, decoder: DecoderConfig, layers: Layers, experts: Experts, profiler: Profiler, site: BlockSite
    ) -> Block:
        if not self.parallel:
            return Moe.routed(self, decoder, layers, experts, profiler, site)
        weights, layer = layers.weights, decoder.layer(site.layer)
        norm = replace(decoder.block_norm(site.layer), name=f"{layer}residual_layernorm.weight")
        mlp = SharedExpert(weights, f"{layer}residual_mlp.", names=_MATRICES, activation=decoder.activation)
        behind = PlainBlock(weights.norm(norm), mlp)
        return ParallelBlock(site.moe_layer, self.router(layers, self, site), experts, profiler, behind)


class Family(DecoderFamily):
    name = "arctic"
    parse = staticmethod(_parse)
    matrices = tuple(f".{each}.weight" for each in _MATRICES)
