"""Ling 3.0: Kimi Linear with bounded decays, rotary positions, and gates of heads in latent attention.

The last layers clamp experts, as published servers do (vLLM and SGLang); transformers 5.24 does not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from moeinf.errors import UnsupportedModelError
from moeinf.models.families.kimi import kimi_linear
from moeinf.models.families.kimi.kimi_linear import NAMES, renamed
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.assemble import Spec
from moeinf.models.layers.latent.mla import LATENT_MATRICES, LatentGate, parse_latent
from moeinf.models.layers.moe import BlockNames, clamping, sparse_layers
from moeinf.models.layers.recurrent.kda import KdaConfig, below_zero, kda_mixer
from moeinf.models.layers.rope import rope_kind
from moeinf.models.layers.routers import sigmoid_moe
from moeinf.types import TensorPlan

_MODULE, _OUTPUT = "attention", "dense"
_LIMITS = "expert_swiglu_limit_list", "share_expert_swiglu_limit_list"
_OLDER = "BailingMoeV2_5ForCausalLM"


def _parse(f: Fields) -> Spec:
    if f.get("architectures") == [_OLDER]:
        raise UnsupportedModelError(
            f"{f.where}: architectures = {_OLDER} is not supported: Ling 2.5 and 2.6 share the model_type of Ling 3.0, "
            "and have lightning attention where that has KDA"
        )
    f = _with_whole_positions(f)
    num_layers, every = f.count("num_hidden_layers", maximum=MOST_LAYERS), f.count("layer_group_size", 6)
    kinds = f.kinds("layer_types", num_layers, "linear_attention", "full_attention") or tuple(
        "linear_attention" if (i + 1) % every else "full_attention" for i in range(num_layers)
    )
    f = renamed(f, f, NAMES, required=True)
    f.present("routed_scaling_factor", "topk_group", "head_dim", "num_experts")
    f.only("q_lora_rank", None)
    f.fixed(rope_interleave=True, moe_layer_freq=1, no_kda_lora=True, use_bias=False, use_qkv_bias=False)
    f.fixed(gated_attention_proj_granularity_type="head_wise", score_function="sigmoid")
    f.only("moe_shared_expert_intermediate_size", f.get("moe_intermediate_size"), None)
    f.only("num_nextn_predict_layers", f.get("num_mtp_layers"), 0, 1, None)
    theta = {} if f.get("rope_theta") is not None else {"rope_theta": 6e6}
    decoder, latent = parse_latent(f.replaced(q_lora_rank=None, head_dim=None, **theta), interleaved=True)
    decoder = decoder.named(embedding="word_embeddings")
    layers = sparse_layers(f, num_layers, first_dense=f.count("first_k_dense_replace", 2, minimum=0))
    blocks = sigmoid_moe(f, num_layers, num_future_layers=1, moe_layers=layers)
    a = decoder.attention
    own = {  # as transformers saves what it derives, and head_dim as qk_rope_head_dim
        "linear_num_heads": a.num_heads,
        "linear_head_dim": f.count("head_dim"),
        "linear_conv_kernel_dim": f.count("short_conv_kernel_size", 4, minimum=2),
    }
    own = {name: f.count(name, value) for name, value in own.items()}
    kda = KdaConfig.parse(f.replaced(**own), a.hidden_size, a.norm_eps)
    kda = replace(kda, whole="fg", lower_bound=_lower_bound(f), output=_OUTPUT, decay_numbers=kda.num_heads)
    recurrent = kda_mixer(kda, _MODULE)
    latent = replace(latent.named(module=_MODULE, output=_OUTPUT), gate=LatentGate("heads"))
    return Spec(
        decoder,
        clamping(replace(blocks, names=BlockNames(bias="gate.expert_bias")), f, num_layers, *_LIMITS),
        {i: recurrent if kind == "linear_attention" else latent for i, kind in enumerate(kinds)},
        amended=_without_small_gates,
    )


def _with_whole_positions(f: Fields) -> Fields:
    """All of qk_rope_head_dim is rotated: published checkpoints have partial_rotary_factor, which plain positions do
    not read."""
    if rope_kind(f) != "default":
        return f
    r = f.within("rope_parameters")
    found = {name: r.get(name) for name in r.names if name != "partial_rotary_factor"}
    return f.replaced(partial_rotary_factor=None, rope_parameters=found or None)


def _lower_bound(f: Fields) -> float | None:
    if not f.flag("kda_safe_gate", True):
        return None
    bound = f.get("kda_lower_bound")
    return below_zero(f, "kda_lower_bound", -5.0 if bound is None else bound)


def _without_small_gates(plan: TensorPlan) -> TensorPlan:
    """The gates of heads are not quantised."""
    gates = {name for name, shape in plan.dense.items() if name.endswith(".g_proj.weight") and shape[0] < shape[1] // 4}
    return replace(plan, matrices=plan.matrices - gates)


class Family(kimi_linear.Family):
    name = "bailing_hybrid"
    parse = staticmethod(_parse)
    matrices: ClassVar[tuple[str, ...]] = (*LATENT_MATRICES, ".attention.dense.weight")
    renamed = ((r"\.attention\.o_proj\.", ".attention.dense."),)
