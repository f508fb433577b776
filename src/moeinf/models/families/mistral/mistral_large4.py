"""Mistral Large 4, the language model of it: GLM-5's latent attention to chosen positions, softmax routing.

Layers may attend to the latents of an earlier one; some have no positions, and the frequencies of the others are
learned. Queries grow with the logarithm of their position. Checkpoints hold a model of images, which is left out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.models.families.deepseek import deepseek_v32
from moeinf.models.families.glm.glm_moe_dsa import choosing_layers
from moeinf.models.families.mistral import mistral4
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.assemble import Mixer, Spec
from moeinf.models.layers.decoder import Logits
from moeinf.models.layers.latent.indexed import IndexConfig, IndexedLatent
from moeinf.models.layers.latent.mla import parse_latent
from moeinf.models.layers.moe import Moe, sparse_layers
from moeinf.models.layers.rope import Rope, names_positions, rope_fields
from moeinf.models.text_part import text_part
from moeinf.types import JsonObject

_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 2048.0,
    "original_max_position_embeddings": 512,
    "attention_factor": 1.0,
}
_GROWTH = "softmax_scaling"
_TEXT = "model.language_model."
_LAYER, _OURS = r"^layers\.(\d+)\.", rf"{_TEXT}layers.\1."
_MLP = (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj"))
_RENAMED = (  # as published
    {
        r"^tok_embeddings\.": f"{_TEXT}embed_tokens.",
        r"^norm\.": f"{_TEXT}norm.",
        r"^output\.": "lm_head.",
        r"^lerope\.": f"{_TEXT}rotary_emb.",
        rf"{_LAYER}attention_norm\.": f"{_OURS}input_layernorm.",
        rf"{_LAYER}ffn_norm\.": f"{_OURS}post_attention_layernorm.",
        rf"{_LAYER}gate\.": f"{_OURS}mlp.gate.",
        rf"{_LAYER}attention\.(indexer\.)?ssmax_scaling\.s$": rf"{_OURS}self_attn.\2{_GROWTH}.scale",
        rf"{_LAYER}attention\.(indexer\.)?ssmax_scaling\.b$": rf"{_OURS}self_attn.\2{_GROWTH}.bias",
        rf"{_LAYER}attention\.indexer\.": f"{_OURS}self_attn.indexer.",
        rf"{_LAYER}attention\.kv_a_norm\.": f"{_OURS}self_attn.kv_a_layernorm.",
        rf"{_LAYER}attention\.wkv_a_with_mqa\.": f"{_OURS}self_attn.kv_a_proj_with_mqa.",
        rf"{_LAYER}attention\.wkv_b\.": f"{_OURS}self_attn.kv_b_proj.",
        rf"{_LAYER}attention\.wq\.": f"{_OURS}self_attn.q_proj.",
        rf"{_LAYER}attention\.wo\.": f"{_OURS}self_attn.o_proj.",
    }
    | {rf"{_LAYER}feed_forward\.{theirs}\.": f"{_OURS}mlp.{name}." for theirs, name in _MLP}
    | {rf"{_LAYER}(experts\.\d+|shared_experts)\.{theirs}\.": rf"{_OURS}mlp.\2.{name}." for theirs, name in _MLP}
)
_OTHER_MODELS = (
    r"(vision_encoder|pre_mm_projector_norm|patch_merger|vision_language_adapter)\..*",
    r"model\.(vision_tower|multi_modal_projector)\..*",
)


def _parse(f: Fields, learned: str) -> Spec:
    """learned: the tensor that the frequencies of positions are made of."""
    f.only("q_lora_rank", None)
    f.fixed(mlp_bias=False, norm_topk_prob=True)
    f.only("head_dim", f.get("qk_rope_head_dim"), None)  # transformers' other name for it
    f.present("n_routed_experts", "n_shared_experts")
    if not names_positions(f):
        f.only("rope_theta", _ROPE["rope_theta"], None)  # transformers looks for it in rope_parameters alone
        f = f.replaced(rope_parameters=_ROPE)
    num_layers = f.count("num_hidden_layers", maximum=MOST_LAYERS)
    decoder, latent = parse_latent(f.replaced(q_lora_rank=None), interleaved=True, norm_eps=1e-5)
    a = decoder.attention
    assert a.rope is not None
    if a.rope.beyond is not None:
        raise UnsupportedModelError(f"{rope_fields(f).where}: positions that differ by length are not learned")
    latent = replace(latent.named(growth=_GROWTH), eps=a.norm_eps)
    f.kinds("layer_types", num_layers, "indexed_attention")
    rotated = _rotated(f, num_layers)
    sources = _sources(f, rotated)
    still = replace(a, rope=Rope(np.zeros(0, np.float32), interleaved=True), head_dim=latent.rank)
    without = replace(latent, rotary_dim=0, qk_nope_head_dim=latent.qk_nope_head_dim + latent.rotary_dim)
    choosing = choosing_layers(f)
    index = IndexConfig.parse(f, latent, choosing, interleaved=True, query_norm="q_input_norm", growth=_GROWTH)
    first = f.count("first_k_dense_replace", 1, minimum=0)
    layers = sparse_layers(f, num_layers, first_dense=min(first, num_layers))
    blocks = Moe.parse(f, num_layers, router=mistral4.SoftmaxRouter, normalise=True, corrected=False, moe_layers=layers)
    decoder = replace(
        decoder,
        attention=replace(a, rope=replace(a.rope, learned=learned)),
        special={i: still for i in range(num_layers) if not rotated[i]},
        logits=Logits(cap=f.number("final_logit_softcapping", 30.0)),
    )
    mixers = dict[int, Mixer]()
    for i in range(num_layers):
        own = replace(latent if rotated[i] else without, source=sources[i])
        mixers[i] = IndexedLatent(own, replace(index, chooses=choosing[i]))
    return Spec(decoder, blocks, mixers)


def _rotated(f: Fields, num_layers: int) -> list[bool]:
    """Which layers have positions."""
    if f.get("no_rope_layers") is None:
        every = f.count("no_rope_layer_interval", 4)
        return [(i + 1) % every != 0 for i in range(num_layers)]
    return [bool(each) for each in f.counts("no_rope_layers", num_layers)]


def _sources(f: Fields, rotated: list[bool]) -> list[int | None]:
    """The layer to whose latents each attends; None: it has its own."""
    if f.get("kv_source_layers") is None:
        return [None] * len(rotated)
    listed, last = f.counts("kv_source_layers", len(rotated)), dict[bool, int]()
    for i, source in enumerate(listed):
        if source > i or listed[source] != source:
            raise CheckpointError(f"{f.where}: kv_source_layers: layer {i} cannot have the latents of layer {source}")
        if source == i:
            last |= {rotated[i]: i} if i in listed[i + 1 :] else {}
        elif last.get(rotated[i]) != source:  # transformers knows the last one of those with positions or without
            raise UnsupportedModelError(
                f"{f.where}: kv_source_layers: layer {i} has the latents of layer {source}, which is not the last "
                "before it that shares latents and has positions, or none, as it"
            )
    return [None if source == i else source for i, source in enumerate(listed)]


class Family(deepseek_v32.Family):
    name = "mistral_large4"
    divisible = False
    renamed = tuple(_RENAMED.items())
    ignored = _OTHER_MODELS
    ahead = (r"mtp_dspark\..*",)

    def __init__(self, config: JsonObject) -> None:
        text = text_part(config)
        spec = _parse(text.fields, f"{text.prefix}rotary_emb.alpha")
        self.take(replace(spec, decoder=spec.decoder.named(prefix=text.prefix)))
