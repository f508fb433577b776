"""MiMo-V2.5 and V2.6: the blocks of MiMo-V2-Flash, under the names of the fields that their makers publish."""

from __future__ import annotations

from moeinf.models.families.glm import mimo_v2_flash
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.assemble import Spec
from moeinf.types import JsonObject

_NAMED = ("layernorm_epsilon", "rope_theta", "swa_rope_theta", "partial_rotary_factor", "attention_value_scale")


def _parse(f: Fields) -> Spec:
    f.only("attention_projection_layout", "split", "fused_qkv", None)
    f.only("moe_router_dtype", "float32", "bfloat16", None)  # of the stored matrix
    f.present(*_NAMED, "swa_num_key_value_heads", "sliding_window_size")
    f.fixed(hybrid_block_size=None, add_swa_attention_sink_bias=True)
    thetas = [f.number(name) for name in ("rope_theta", "swa_rope_theta")]
    of_all, of_windows = ({"rope_type": "default", "rope_theta": theta} for theta in thetas)
    ropes: dict[str, JsonObject] = {"full_attention": of_all, "sliding_attention": of_windows}
    rotated = {"partial_rotary_factor": f.number("partial_rotary_factor")}
    for name in ("rope_parameters", "rope_scaling"):  # of layers that see all tokens
        beside = f.within(name)
        beside.fixed(**of_all, **rotated, type="default")
        beside.refuse_others(*of_all, *rotated, "type")
    layers = f.count("num_hidden_layers", maximum=MOST_LAYERS)
    windows, sparse = (f.counts(name, layers, 1) for name in ("hybrid_layer_pattern", "moe_layer_freq"))
    return mimo_v2_flash.parse_mimo(
        f.renamed({"rms_norm_eps": "layernorm_epsilon"}).replaced(
            **dict.fromkeys(
                ("rope_theta", "swa_rope_theta", "rope_scaling", "partial_rotary_factor", "moe_layer_freq")
            ),
            rms_norm_eps=f.get("layernorm_epsilon"),
            rope_parameters={kind: rope | rotated for kind, rope in ropes.items()},
            layer_types=["sliding_attention" if each else "full_attention" for each in windows],
            mlp_layer_types=["sparse" if each else "dense" for each in sparse],
        )
    )


class Family(mimo_v2_flash.Family):
    name = "mimo_v2"
    parse = staticmethod(_parse)
    ignored = (r"visual\..*", r"audio_encoder\..*", r"speech_embeddings\..*")
