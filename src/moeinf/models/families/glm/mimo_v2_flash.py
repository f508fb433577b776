"""MiMo-V2-Flash: DeepSeek-V3's routing, windows with attention sinks, values narrower than keys.

Layers with a window have twice the key/value heads of those that see all tokens, and positions of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import CommonAttention, DecoderFamily, Spec
from moeinf.models.layers.attention.grouped import AttentionPart
from moeinf.models.layers.attention_config import AttentionSite, Scores, Sight
from moeinf.models.layers.decoder import DecoderConfig, parse_decoder
from moeinf.models.layers.moe import sparse_layers
from moeinf.models.layers.protocol import Attention, Layers
from moeinf.models.layers.rope import Rope, of_kind, partial_rotary, rope_of
from moeinf.models.layers.routers import sigmoid_moe
from moeinf.models.layers.vision.of_families.mimo_vision import mimo_vision
from moeinf.models.layers.vision.vision import seeing
from moeinf.types import JsonObject, RowsOf, TensorPlan

_MTP = r"model\.mtp\..*"
_PARTIAL = 0.334
_ROPES: dict[str, JsonObject] = {
    "full_attention": {"rope_type": "default", "rope_theta": 5e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


@dataclass(frozen=True, slots=True)
class ValueScaled(CommonAttention):
    """A layer adds W_o of a mixture of values, so that what scales these scales that."""

    scale: float

    def of_site(self, layers: Layers, site: AttentionSite) -> Attention:
        return layers.make(AttentionPart(self.config, replace(site, residual=self.scale)))


def parse_mimo(f: Fields) -> Spec:
    f.fixed(scoring_func="sigmoid", topk_method="noaux_tc", n_shared_experts=0, use_qk_norm=False)
    f.only("partial_rotary_factor", _PARTIAL, None)  # each kind of layer has its own
    f.only("rope_theta", _ROPES["full_attention"]["rope_theta"], None)
    f.only("swa_rope_theta", _ROPES["sliding_attention"]["rope_theta"], None)
    f.present("head_dim", "v_head_dim", "n_group", "topk_group")
    if f.get("rope_parameters") is None:
        f = f.replaced(rope_parameters=_ROPES)
    f.within("rope_parameters").refuse_others(*_ROPES)
    whole = of_kind(f, "full_attention")
    decoder = parse_decoder(
        whole, norm_eps=1e-5, theta=1e4, output_bias=False, rope=_rope(f, "full_attention"), num_kv_heads=_kv_heads(f)
    )
    a, num_layers = decoder.attention, decoder.num_layers
    values = f.count("v_head_dim")
    if values < a.head_dim:
        a = replace(a, projections=replace(a.projections, value_dim=values))
    elif values > a.head_dim:
        narrow = replace(a.projections, key_dim=a.head_dim)
        a = replace(a, head_dim=values, projections=narrow, scores=Scores(a.head_dim**-0.5))
    kinds = f.kinds("layer_types", num_layers, *_ROPES) or tuple(
        "sliding_attention" if i and (i + 1) % 6 else "full_attention" for i in range(num_layers)
    )
    before = f.get("sliding_window_size")  # the tokens before a token's own
    window = f.count("sliding_window", 129) if before is None else f.count("sliding_window_size") + 1
    own = f.count("swa_num_key_value_heads", 2 * a.num_kv_heads)
    sliding = replace(a, num_kv_heads=own, rope=_rope(f, "sliding_attention"), sight=Sight(window))
    sliding = sliding.scored(sinks="attention_sink_bias")
    slides = [i for i, kind in enumerate(kinds) if kind == "sliding_attention"]
    _only_said_again(f, slides, num_layers)
    if f.get("routed_scaling_factor") is None:
        f = f.replaced(routed_scaling_factor=1.0)
    sparse = sparse_layers(f, num_layers, first_dense=1)
    blocks = sigmoid_moe(
        f.replaced(n_shared_experts=0, num_nextn_predict_layers=0, num_mtp_layers=0), num_layers, moe_layers=sparse
    )
    scale = 1.0 if f.get("attention_value_scale") is None and "attention_value_scale" in f else None
    scale = f.number("attention_value_scale", 0.707) if scale is None else scale
    decoder = replace(decoder, attention=a, special=dict.fromkeys(slides, sliding))
    mixers = {i: ValueScaled(decoder.attention_of(i), scale) for i in range(num_layers)}
    return Spec(decoder, blocks, mixers, amended=partial(_in_shares, decoder, _kv_heads(f)))


def _in_shares(decoder: DecoderConfig, shares: int, plan: TensorPlan) -> TensorPlan:
    """Queries, keys and values were quantised apart for each of so many processors, and may lie so in one matrix."""
    cut = dict[str, RowsOf]()
    for i in range(decoder.num_layers):
        prefix = decoder.attention_site(i).prefix
        names = [f"{prefix}{each}_proj.weight" for each in "qkv"]
        rows = [plan.dense[name][0] // shares for name in names]
        for at, (name, count) in enumerate(zip(names, rows, strict=True)):
            begins = [number * sum(rows) + sum(rows[:at]) for number in range(shares)]
            cut[name] = RowsOf(f"{prefix}qkv_proj.weight", tuple(range(begin, begin + count) for begin in begins))
    return replace(plan, cut=cut)


def _kv_heads(f: Fields) -> int:
    f.present("num_key_value_heads")
    return f.count("num_key_value_heads")


def _rope(f: Fields, kind: str) -> Rope:
    own = of_kind(f, kind)
    plain = own.within("rope_parameters").get("rope_type") in ("default", None)
    own = own.replaced(partial_rotary_factor=_PARTIAL if plain else 1.0)  # where its kind says nothing
    rotated = partial_rotary(own, f.count("head_dim", minimum=2))
    return rope_of(own, rotated, 1e4, f.count("max_position_embeddings"))


def _only_said_again(f: Fields, slides: list[int], num_layers: int) -> None:
    """Fields of published checkpoints that repeat what others say: refused where they say something else."""
    for name, meant in (
        ("hybrid_layer_pattern", [int(i in slides) for i in range(num_layers)]),
        ("add_swa_attention_sink_bias", True),
        ("add_full_attention_sink_bias", False),
        ("swa_num_attention_heads", f.get("num_attention_heads")),
        ("swa_head_dim", f.get("head_dim")),
        ("swa_v_head_dim", f.get("v_head_dim")),
    ):
        f.only(name, meant, None)


class Family(DecoderFamily):
    name = "mimo_v2_flash"
    parse = staticmethod(parse_mimo)
    ahead = (_MTP,)

    def __init__(self, config: JsonObject) -> None:
        super().__init__(config)
        self.vision, self.no_vision = seeing(lambda: mimo_vision(Fields(config), self.decoder.attention.hidden_size))
