"""DBRX: clipped queries, keys and values in one matrix, layer norms without a bias, softmax routing (Dbrx).

One matrix has the rows of gate, up or down of all experts of a layer; those of down are columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from moeinf.models.activations import activation_of
from moeinf.models.families.mixtral import olmoe
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.attention_config import NormConfig, Projections, Shapes, attention_shapes
from moeinf.models.layers.decoder import Decoder, LayerNorms, parse_decoder
from moeinf.models.layers.moe_block import MoeBlock
from moeinf.models.layers.protocol import Block, Experts, Layers, Weights
from moeinf.models.layers.rope import whole_heads
from moeinf.types import ExpertPiece, Profiler, TensorPlan

_NORMS = LayerNorms("norm_attn_norm.norm_1", None, "norm_attn_norm.norm_2")
_ATTENTION = "norm_attn_norm.attn"
_SIZES = {  # in the names of others, as transformers also takes them: both
    "hidden_size": ("d_model", "hidden_size"),
    "num_attention_heads": ("n_heads", "num_attention_heads"),
    "num_hidden_layers": ("n_layers", "num_hidden_layers"),
    "max_position_embeddings": ("max_position_embeddings", "max_seq_len"),
}


@dataclass(frozen=True, slots=True)
class Config(olmoe.Config):
    order: float  # of the norm that a token's weights are divided by; 0: none


def _parse(f: Fields) -> Config:
    attention, ffn = f.within("attn_config"), f.within("ffn_config")
    sizes = {name: f.count_of(*names) for name, names in _SIZES.items()}
    called = {name: next((each for each in names if f.get(each) is not None), name) for name, names in _SIZES.items()}
    f = f.renamed(called | {"num_key_value_heads": "kv_n_heads of attn_config"})
    hidden, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    f.only("head_dim", hidden // heads, None)
    whole_heads(f)
    ffn.only("hidden_size", hidden, None)
    act = ffn.within("ffn_act_fn")
    act.refuse_others("name")
    decoder = parse_decoder(
        f.replaced(**sizes, rms_norm_eps=1e-5),
        norm_eps=1e-5,
        theta=attention.number("rope_theta", 1e4),
        num_kv_heads=attention.count("kv_n_heads"),
        bias=False,
        output_bias=False,
        norm="centred",
        projections=Projections(fused="Wqkv", output="out_proj", clip=attention.number("clip_qkv", 0.0) or None),
    )
    order = 1.0 if "moe_normalize_expert_weights" not in ffn else ffn.number("moe_normalize_expert_weights", 0.0)
    return Config(
        replace(
            decoder.named(norms=_NORMS, prefix="transformer.", layers="blocks", embedding="wte", last_norm="norm_f"),
            activation=activation_of(act, "name"),
        ),
        routed_shape(ffn, ("moe_num_experts",), ffn.count("moe_top_k"), decoder.num_layers),
        ffn.count("ffn_hidden_size"),
        order > 0,
        order,
    )


class Router:
    """Softmax over all experts, and of these the best k."""

    def __init__(self, weights: Weights, gate: str, norm: NormConfig, c: Config) -> None:
        self._weights, self._config = weights, c
        self._norm, self._gate = weights.norm(norm), weights.linear(gate)

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        math, hidden = self._weights.math, self._norm(x)
        scores = math.softmax(self._gate(hidden))
        ids = math.top_k(scores, self._config.moe.top_k)
        chosen = math.take(scores, ids)
        if order := self._config.order:
            chosen = chosen / math.sum(chosen**order, -1, True) ** (1 / order)
        return hidden, self._weights.routing(ids, chosen)


class Family(olmoe.Family):
    name = "dbrx"
    _config: Config

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = c = _parse(Fields(config))
        self.decoder, self.moe = c.decoder, c.moe

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c, d, blocks = self._config, self.decoder, list[Block]()
        for i, block in enumerate(self._blocks()):
            router = Router(layers.weights, f"{block}router.layer.weight", d.block_norm(i), c)
            blocks.append(MoeBlock(i, router, experts, profiler))
        numbers = range(d.num_layers)
        attention = [layers.attention(d.attention, d.attention_site(i, _ATTENTION)) for i in numbers]
        return Decoder(d, layers, blocks, experts, profiler, attention)

    def _blocks(self) -> list[str]:
        return [f"{self.decoder.module(i, 'ffn')}." for i in range(self.decoder.num_layers)]

    def attention_shapes(self) -> Shapes:
        shapes, d = Shapes(), self.decoder
        for i in range(d.num_layers):
            shapes |= attention_shapes(d.attention, f"{d.module(i, _ATTENTION)}.")
        return shapes

    def block_shapes(self) -> Shapes:
        hidden = self.decoder.attention.hidden_size
        return {
            f"{block}router.layer.weight": (self.moe.experts_of(i), hidden) for i, block in enumerate(self._blocks())
        }

    @cached_property
    def tensors(self) -> TensorPlan:
        plan, inter, hidden = super().tensors, self._config.intermediate_size, self.decoder.attention.hidden_size
        layout: dict[str, tuple[tuple[int, ...], tuple[ExpertPiece, ...]]] = {}
        for layer, block in enumerate(self._blocks()):
            count = self.moe.experts_of(layer)
            for name, part, strides in (("w1", "gate", None), ("v1", "up", None), ("w2", "down", (1, hidden))):
                pieces = tuple(ExpertPiece(layer, e, part, e * inter * hidden, strides) for e in range(count))
                layout[f"{block}experts.mlp.{name}"] = ((count * inter, hidden), pieces)
        fused = {name for name in plan.dense if name.endswith(".Wqkv.weight")}
        return replace(plan, experts=(layout,), matrices=plan.matrices | fused)
