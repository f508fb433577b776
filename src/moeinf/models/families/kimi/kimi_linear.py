"""Kimi Linear: KDA in three of four layers, latent attention without positions in the others (arXiv 2510.26692)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from moeinf.errors import CheckpointError
from moeinf.models.families.deepseek import deepseek_v2
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.assemble import Spec
from moeinf.models.layers.latent.mla import NO_LATENT_MATRICES, parse_latent
from moeinf.models.layers.moe import BlockNames, sparse_layers
from moeinf.models.layers.recurrent.kda import KdaConfig, kda_mixer
from moeinf.models.layers.rope import Rope
from moeinf.models.layers.routers import sigmoid_moe

NAMES = {  # what the checkpoint calls the fields that others have too
    "max_position_embeddings": "model_max_length",
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
}
_INNER = {  # the same, inside of linear_attn_config
    "linear_num_heads": "num_heads",
    "linear_head_dim": "head_dim",
    "linear_conv_kernel_dim": "short_conv_kernel_size",
}


def _unchanged(kda: KdaConfig) -> KdaConfig:
    return kda


def _parse(f: Fields) -> Spec:
    return parse_with(f)


def parse_with(f: Fields, own: Collection[str] = (), changed: Callable[[KdaConfig], KdaConfig] = _unchanged) -> Spec:
    """own: further fields of linear_attn_config, of a family that reads them; changed: what it makes of KDA."""
    num_layers = f.count("num_hidden_layers", maximum=MOST_LAYERS)
    kinds = _kinds(f, num_layers)
    f = _in_common_names(f, own)
    f.fixed(mla_use_nope=True, moe_router_activation_func="sigmoid", use_grouped_topk=True, moe_layer_freq=1)
    f.only("head_dim", f.get("head_dim"), None)  # of neither kind of layer
    f.present("routed_scaling_factor", "num_experts")
    plain = f.replaced(rope_scaling=None, rope_parameters=None, head_dim=None)
    decoder, latent = parse_latent(plain, interleaved=False, norm_eps=1e-5)
    unturned = Rope(np.zeros(latent.rotary_dim // 2, np.float32))
    decoder = replace(decoder, attention=replace(decoder.attention, rope=unturned))
    layers = sparse_layers(f, num_layers, first_dense=f.count("first_k_dense_replace", 1, minimum=0))
    blocks = sigmoid_moe(f, num_layers, moe_layers=layers)
    a, blocks = decoder.attention, replace(blocks, names=BlockNames(experts=("w1", "w3", "w2")))
    kda = kda_mixer(changed(KdaConfig.parse(f, a.hidden_size, a.norm_eps)))
    return Spec(decoder, blocks, {i: kda if kind == "linear_attention" else latent for i, kind in enumerate(kinds)})


def _in_common_names(f: Fields, own: Collection[str]) -> Fields:
    inner = f.within("linear_attn_config")
    inner.refuse_others("kda_layers", "full_attn_layers", *_INNER.values(), *own)
    return renamed(renamed(f, f, NAMES, required=True), inner, _INNER, required=False)


def renamed(f: Fields, inner: Fields, names: Mapping[str, str], *, required: bool) -> Fields:
    """f with fields under their common names; names: of each its own, which it may have in `inner`."""
    found = dict[str, Any]()
    for common, own in names.items():
        value, other = inner.get(own), f.get(common)
        if value is not None and other is not None and value != other:
            raise CheckpointError(f"{f.where}: {common} is {other!r:.50} and {own} {value!r:.50}; they mean the same")
        found[common] = other if value is None else value
        if found[common] is None and required:
            raise CheckpointError(f"{f.where}: {own} (or {common}) is missing")
    return f.replaced(**found).renamed({common: own for common, own in names.items() if inner.get(own) is not None})


def _kinds(f: Fields, num_layers: int) -> tuple[str, ...]:
    kinds = f.kinds("layer_types", num_layers, "linear_attention", "full_attention")
    inner = f.within("linear_attn_config")
    if kinds is not None:
        return kinds
    if inner.get("kda_layers") is None or inner.get("full_attn_layers") is None:
        return tuple("linear_attention" if i % 4 or not i else "full_attention" for i in range(num_layers))
    linear, full = inner.layers("kda_layers"), inner.layers("full_attn_layers")  # counted from 1
    if linear & full or linear | full != frozenset(range(1, num_layers + 1)):
        raise CheckpointError(f"{inner.where}: kda_layers and full_attn_layers do not name each layer once")
    return tuple("linear_attention" if i + 1 in linear else "full_attention" for i in range(num_layers))


class Family(deepseek_v2.Family):
    name = "kimi_linear"
    parse = staticmethod(_parse)
    no_matrices: ClassVar[tuple[str, ...]] = (*NO_LATENT_MATRICES, ".b_proj.weight")
    renamed = ((r"\.block_sparse_moe\.", ".mlp."),)
