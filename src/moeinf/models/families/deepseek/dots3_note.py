"""dots 3 Note, the language model of it: DeepSeek-V3.2's attention with gates of heads (Dots3NoteForCausalLM).

Three of four layers have a window instead of an indexer, and sizes and positions of their own. Checkpoints hold models
of images and of speech beside it, which are left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from moeinf.errors import CheckpointError
from moeinf.models.families.deepseek import deepseek_v32
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.assemble import Spec
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.latent.indexed import IndexConfig, IndexedLatent
from moeinf.models.layers.latent.mla import LatentConfig, LatentGate, parse_latent
from moeinf.models.layers.moe import sparse_layers
from moeinf.models.layers.rope import of_kind
from moeinf.models.layers.routers import sigmoid_moe
from moeinf.models.text_part import TextIn

_INDEXED, _FULL, _SLIDING = "indexed_attention", "full_attention", "sliding_attention"
_SIZES = {  # of layers with a window, where nothing is said of them
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 1024,
    "kv_lora_rank": 1024,
    "head_dim": 256,
    "qk_nope_head_dim": 192,
    "v_head_dim": 128,
}
_OTHER_MODELS = (r"(model\.)?(vision_encoder|audio_encoder|audio_adapter|vision_tower|audio_tower)\..*",)


def _parse(f: Fields) -> Spec:
    f.fixed(
        mlp_bias=False,
        normalization="RMSNorm",
        final_norm="RMSNorm",
        scoring_func="sigmoid",
        topk_method="noaux_tc",
        k_rope_only_layernorm=True,
        apply_mla_qkv_lora_rescale=True,
        attention_gate_type="headwise",
        swa_attention_gate_type="headwise",
        use_dynamic_rsf=False,
    )
    num_layers = f.count("num_hidden_layers", maximum=MOST_LAYERS)
    kinds = _kinds(f, num_layers)
    own = {kind: _attention(f, kinds, kind) for kind in (_INDEXED, _FULL, _SLIDING) if kind in kinds}
    decoder, latent = next(iter(own.values()))
    choosing = tuple(kind == _INDEXED for kind in kinds)
    # without an indexer its fields do not matter
    given = f if any(choosing) else f.replaced(index_n_heads=1, index_topk=1, index_head_dim=latent.rotary_dim)
    index = IndexConfig.parse(given, latent, (True,), interleaved=True)
    blocks = sigmoid_moe(f, num_layers, num_future_layers=1, moe_layers=_sparse(f, num_layers))
    shared = f.count("moe_shared_expert_intermediate_size", f.count("shared_experts_intermediate_size", 1536))
    latents = {i: own[kind][1] for i, kind in enumerate(kinds)}
    return Spec(
        replace(decoder, special={i: own[kind][0].attention for i, kind in enumerate(kinds)}),
        replace(blocks, shared=replace(blocks.shared, size=blocks.num_shared_experts * shared)),
        {i: IndexedLatent(each, index) if choosing[i] else each for i, each in latents.items()},
    )


def _kinds(f: Fields, num_layers: int) -> tuple[str, ...]:
    indexed = f.flag("use_dsa", True) if "use_dsa" in f or "per_layer_config" not in f else None
    kinds = f.kinds("layer_types", num_layers, _INDEXED, _FULL, _SLIDING)
    if kinds is None:
        slides, other = f.flag("use_sliding_window", True), _FULL if indexed is False else _INDEXED
        kinds = tuple(other if not slides or i < 2 or i % 4 == 1 else _SLIDING for i in range(num_layers))
    if indexed is None:
        return kinds
    return tuple(kind if kind == _SLIDING else _INDEXED if indexed else _FULL for kind in kinds)


def _attention(f: Fields, kinds: tuple[str, ...], kind: str) -> tuple[DecoderConfig, LatentConfig]:
    """Of layers of a kind. The latents of queries are scaled, which is left to their scores: it changes no choice."""
    f = _with_ropes(_with_sizes(f, kinds, kind), kinds)
    windowed = kind == _SLIDING
    decoder, latent = parse_latent(of_kind(f, kind), interleaved=True, norm_eps=1e-5, windowed=windowed)
    hidden = decoder.attention.hidden_size
    scaled = f.flag("latents_scaled", True)  # else the norms of a GGUF file are
    queries, latents = ((hidden / size) ** 0.5 if scaled else 1.0 for size in (f.count("q_lora_rank"), latent.rank))
    scale = (latent.qk_nope_head_dim + latent.rotary_dim) ** -0.5 * queries
    window = (f.count("sliding_window", 0) or f.count("sliding_window_size", 512)) if windowed else None
    latent = replace(
        latent.named(key_norm="k_rope_only_layernorm"),
        eps=decoder.attention.norm_eps,
        gate=LatentGate("heads"),
        latent_scale=latents,
    )
    return replace(decoder, attention=decoder.attention.scored(scale=scale).seeing(window)), latent


def _with_sizes(f: Fields, kinds: tuple[str, ...], kind: str) -> Fields:
    """The fields as layers of a kind have them."""
    sizes: dict[str, Any] = {}
    names = (*_SIZES, "qk_rope_head_dim")
    if "per_layer_config" in f:
        layers = f.within("per_layer_config")
        for i, each in enumerate(kinds):
            own = layers.within(str(i))
            own.refuse_others(*(names if each == _SLIDING else ()))
            if each == kind == _SLIDING:
                found = {name: own.get(name) for name in names if own.get(name) is not None}
                if sizes not in ({}, found):
                    raise CheckpointError(f"{layers.where}: layers with a window differ")
                sizes = found
    elif kind == _SLIDING:
        sizes = {name: f.count(f"swa_{name}", default) for name, default in _SIZES.items()}
        rest = sizes["head_dim"] - sizes["qk_nope_head_dim"]
        sizes["qk_rope_head_dim"] = f.count("swa_qk_rope_head_dim", max(rest, 2), minimum=2)
    f = f.replaced(per_layer_config=None, **sizes)
    heads = f.count("num_attention_heads")
    if f.count("num_key_value_heads", heads) != heads:
        said = "swa_num_attention_heads, swa_num_key_value_heads, " if kind == _SLIDING else ""
        raise CheckpointError(
            f"{f.where}: {kind} has {heads} heads, and others of keys ({said}num_attention_heads, num_key_value_heads)"
        )
    if kind == _SLIDING and f.count("head_dim") != f.count("qk_nope_head_dim") + f.count("qk_rope_head_dim"):
        raise CheckpointError(
            f"{f.where}: head_dim {f.get('head_dim')} of layers with a window is not qk_nope_head_dim + "
            "qk_rope_head_dim (swa_head_dim, swa_qk_nope_head_dim, swa_qk_rope_head_dim, per_layer_config)"
        )
    return f


def _with_ropes(f: Fields, kinds: tuple[str, ...]) -> Fields:
    """With rope_parameters of each kind of layer. How much of a head they rotate follows from its sizes."""
    theta, scaling = f.number("rope_theta", 8e7), f.get("rope_scaling")
    if f.get("rope_parameters") is not None:
        f.only("rope_scaling", None)
    given = f.within("rope_parameters" if f.get("rope_parameters") is not None else "rope_scaling")
    nested = any(isinstance(given.get(name), dict) for name in given.names)
    ropes: dict[str, Any] = {}
    for kind in kinds:
        if not given.names and scaling is None and f.get("rope_parameters") is None:
            of_one = {"rope_theta": f.number("swa_rope_theta", 5e4) if kind == _SLIDING else theta}
        elif nested and given.get(kind) is None:
            raise CheckpointError(f"{given.where}: {kind} is missing")
        else:
            of_one = {"rope_theta": theta} | (given.within(kind) if nested else given).plain
        ropes[kind] = {name: value for name, value in of_one.items() if name != "partial_rotary_factor"}
    return f.replaced(rope_parameters=ropes, rope_scaling=None, rope_theta=None, partial_rotary_factor=None)


def _sparse(f: Fields, num_layers: int) -> tuple[int, ...]:
    first = f.count("first_k_dense_replace", 1, minimum=0)
    if f.get("mlp_layer_types") is None and f.get("moe_layer_freq") is not None:
        listed = isinstance(f.get("moe_layer_freq"), list)
        step = [1] * num_layers if not listed else f.counts("moe_layer_freq", num_layers)
        every = 1 if listed else f.count("moe_layer_freq")
        sparse = [i >= first and step[i] > 0 and i % every == 0 for i in range(num_layers)]
        f = f.replaced(mlp_layer_types=["sparse" if each else "dense" for each in sparse])
    return sparse_layers(f, num_layers, first_dense=min(first, num_layers))


class Family(deepseek_v32.Family):
    name = "dots3_note"
    parse = staticmethod(_parse)
    text = TextIn("model.")
    no_matrices: ClassVar[tuple[str, ...]] = (*deepseek_v32.Family.no_matrices, ".g_proj.weight")
    ignored = _OTHER_MODELS
    ahead = (r"model\.mtp\..*",)
    renamed = ((r"^model\.language_model\.", "model."),)
