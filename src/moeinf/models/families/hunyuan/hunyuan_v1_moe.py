"""Hunyuan-A13B: Mixtral's routing beside a shared MLP; queries and keys are normed behind their rotation."""

from __future__ import annotations

from dataclasses import replace

from moeinf.errors import UnsupportedModelError
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.moe import BlockNames, Shared, all_routed
from moeinf.models.layers.rope import Rope, plain_rope, rope_fields, rope_kind, rope_of, whole_heads
from moeinf.models.layers.routers import softmax_router
from moeinf.types import Json

_LISTED = ("moe_topk", "moe_intermediate_size", "num_shared_expert")  # may have a number for each layer
_ALPHA = ("rope_type", "type", "rope_theta", "alpha", "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")


def _parse(f: Fields) -> Spec:
    f = f.replaced(**{name: _common(name, f.get(name)) for name in _LISTED if name in f})
    size = f.count("intermediate_size")
    f.fixed(
        moe_intermediate_size=size,
        num_shared_expert=1,
        use_mixed_mlp_moe=True,
        use_qk_norm=True,
        use_cla=False,
        use_mla=False,
        position_embedding_xdrope=False,
        group_limited_greedy=False,
        mlp_bias=False,
        norm_topk_prob=True,
        moe_layer_num_skipped=0,
    )
    f.present("moe_topk")
    head_dim = f.count("head_dim", f.count("hidden_size") // f.count("num_attention_heads"), minimum=2)
    decoder = parse_decoder(
        f,
        norm_eps=1e-5,
        theta=1e4,
        rope=_rope(f, head_dim),
        head_norms=HeadNorms("turned", names=("query_layernorm", "key_layernorm")),
    )
    top_k = f.count_of("moe_topk", "num_experts_per_tok")
    moe = routed_shape(f, ("num_experts", "num_local_experts"), top_k, decoder.num_layers)
    names = BlockNames(gate="gate.wg.weight", shared="shared_mlp.")
    return Spec(decoder, replace(all_routed(moe, size, softmax_router, names), shared=Shared(1)))


def _common(name: str, value: Json) -> Json:
    if isinstance(value, list) and value:
        if any(each != value[0] for each in value):
            raise UnsupportedModelError(f"config.json: {name} = {value!r:.100} is not supported (only one for all)")
        return value[0]
    return value


def _rope(f: Fields, head_dim: int) -> Rope:
    """`dynamic` with alpha is no dynamic scaling, but a larger base: theta * alpha^(d / (d - 2)), at any length."""
    r, kind = rope_fields(f), rope_kind(f)
    whole_heads(f)
    if r.get("alpha") is None or kind != "dynamic":
        rope = rope_of(f, head_dim, 1e4, f.count("max_position_embeddings"))
        if rope.scale != 1.0 or rope.limit:  # norms of heads stand behind positions
            raise UnsupportedModelError(
                f"{r.where} of type {kind!r} is not supported in this family (only 'default', 'linear', 'proportional' "
                "and 'llama3', or 'dynamic' with alpha)"
            )
        return rope
    r.refuse_others(*_ALPHA)
    theta = r.number("rope_theta", f.number("rope_theta", 1e4))
    return plain_rope(head_dim, theta * r.number("alpha") ** (head_dim / (head_dim - 2)))


class Family(DecoderFamily):
    name = "hunyuan_v1_moe"
    parse = staticmethod(_parse)
