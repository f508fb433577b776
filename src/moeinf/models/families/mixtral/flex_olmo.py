"""FlexOlmo: OLMoE with its norms behind attention and experts instead of in front of them (arXiv 2507.07024)."""

from __future__ import annotations

from typing import Any

from moeinf.models.families.mixtral import olmoe
from moeinf.models.families.mixtral.olmoe import Config
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.attention_config import HeadNorms, NormConfig, Shapes
from moeinf.models.layers.decoder import Decoder, LayerNorms, parse_decoder
from moeinf.models.layers.moe_block import MoeBlock
from moeinf.models.layers.protocol import Block, Experts, Layers, Weights
from moeinf.types import Profiler

_NORMS = LayerNorms(attention=None, behind_attention="post_attention_layernorm", block=None)


def _parse(config: dict[str, Any]) -> Config:
    f = Fields(config)
    decoder = parse_decoder(f, norm_eps=1e-6, theta=5e5, head_norms=HeadNorms("full")).named(norms=_NORMS)
    top_k = f.count("num_experts_per_tok")
    moe = routed_shape(f, ("num_experts", "num_local_experts"), top_k, decoder.num_layers)
    return Config(decoder, moe, f.count("intermediate_size"), f.flag("norm_topk_prob", False))


class Router:
    """Softmax over all experts of x as it is, and of these the best k."""

    def __init__(self, weights: Weights, gate: str, top_k: int, *, normalise: bool) -> None:
        self._weights, self._gate, self._top_k, self._normalise = weights, weights.linear(gate), top_k, normalise

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        math = self._weights.math
        scores = math.softmax(self._gate(x))
        ids = math.top_k(scores, self._top_k)
        chosen = math.take(scores, ids)
        if self._normalise:
            chosen = chosen / math.sum(chosen, -1, True)
        return x, self._weights.routing(ids, chosen)


class Family(olmoe.Family):
    name = "flex_olmo"

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = c = _parse(config)
        self.decoder, self.moe = c.decoder, c.moe

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c, blocks, weights = self._config, list[Block](), layers.weights
        for i, block in enumerate(self._blocks()):
            router = Router(weights, f"{block}gate.weight", c.moe.top_k, normalise=c.norm_topk_prob)
            behind = weights.norm(NormConfig(_behind(i), c.decoder.attention.norm_eps))
            blocks.append(MoeBlock(i, router, experts, profiler, behind=behind))
        return Decoder(c.decoder, layers, blocks, experts, profiler)

    def block_shapes(self) -> Shapes:
        hidden = (self.decoder.attention.hidden_size,)
        return super().block_shapes() | {_behind(i): hidden for i in range(self.decoder.num_layers)}


def _behind(layer: int) -> str:
    return f"model.layers.{layer}.post_feedforward_layernorm.weight"
