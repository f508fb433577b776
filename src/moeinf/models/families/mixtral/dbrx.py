"""DBRX: clipped queries, keys and values in one matrix, layer norms without a bias, softmax routing (Dbrx).

One matrix has the rows of gate, up or down of all experts of a layer; those of down are columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from moeinf.models.activations import activation_of
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import Projections, Shapes
from moeinf.models.layers.decoder import DecoderConfig, LayerNorms, parse_decoder
from moeinf.models.layers.moe import BlockNames, BlockSite, Moe, Scoring
from moeinf.models.layers.protocol import Layers
from moeinf.models.layers.rope import whole_heads
from moeinf.types import ExpertPiece, TensorPlan

_NAMES = BlockNames("ffn.", gate="router.layer.weight")
_MODULES: dict[str, Any] = {
    "norms": LayerNorms("norm_attn_norm.norm_1", None, "norm_attn_norm.norm_2"),
    "prefix": "transformer.",
    "layers": "blocks",
    "attention": "norm_attn_norm.attn",
    "embedding": "wte",
    "last_norm": "norm_f",
}
_SIZES = {  # in the names of others, as transformers also takes them: both
    "hidden_size": ("d_model", "hidden_size"),
    "num_attention_heads": ("n_heads", "num_attention_heads"),
    "num_hidden_layers": ("n_layers", "num_hidden_layers"),
    "max_position_embeddings": ("max_position_embeddings", "max_seq_len"),
}


def _parse(f: Fields) -> Spec:
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
    moe = routed_shape(ffn, ("moe_num_experts",), ffn.count("moe_top_k"), decoder.num_layers)
    return Spec(
        replace(decoder.named(**_MODULES), activation=activation_of(act, "name")),
        StackedMoe(
            moe,
            tuple(range(moe.num_layers)),
            0,
            ffn.count("ffn_hidden_size"),
            partial(Router, order=order),
            Scoring(corrected=False),
            names=_NAMES,
        ),
    )


@dataclass(frozen=True, slots=True)
class StackedMoe(Moe):
    def plan(self, decoder: DecoderConfig, dense: Shapes) -> TensorPlan:
        plan, inter, hidden = Moe.plan(self, decoder, dense), self.moe_intermediate_size, decoder.attention.hidden_size
        layout: dict[str, tuple[tuple[int, ...], tuple[ExpertPiece, ...]]] = {}
        for layer in self.moe_layers:
            count = self.moe.experts_of(layer)
            for name, part, strides in (("w1", "gate", None), ("v1", "up", None), ("w2", "down", (1, hidden))):
                pieces = tuple(ExpertPiece(layer, e, part, e * inter * hidden, strides) for e in range(count))
                layout[f"{decoder.layer(layer)}ffn.experts.mlp.{name}"] = ((count * inter, hidden), pieces)
        return replace(plan, experts=(layout,))


class Router:
    """Softmax over all experts, and of these the best k, whose weights are divided by their norm of an order; 0: as
    they are."""

    def __init__(self, layers: Layers, moe: Moe, site: BlockSite, order: float) -> None:
        self._weights, self._top_k, self._order = layers.weights, moe.moe.top_k, order
        self._norm = layers.weights.norm(site.norm)
        self._gate = layers.weights.linear(site.block + moe.names.gate)

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        math, hidden = self._weights.math, self._norm(x)
        scores = math.softmax(self._gate(hidden))
        ids = math.top_k(scores, self._top_k)
        chosen = math.take(scores, ids)
        if order := self._order:
            chosen = chosen / math.sum(chosen**order, -1, True) ** (1 / order)
        return hidden, self._weights.routing(ids, chosen)


class Family(DecoderFamily):
    name = "dbrx"
    parse = staticmethod(_parse)
    matrices = (".Wqkv.weight",)
