"""Every field of a family's configuration, set to another legal value or left out: moeinf computes what transformers
does with it, or refuses it by name. So no field that changes the mathematics is ignored.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import re
import sys
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from torch import Tensor

from moeinf._native import Kernels
from moeinf.errors import CheckpointError
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.family import family_of
from moeinf.pull.checkpoint.tensor_names import plan_name
from moeinf.types import Profiler
from tests.support.pairs.decoders import PROMPT
from tests.support.pairs.experts import layout_in, owning, read_by, resident_experts, stored
from tests.support.sample import SAMPLED
from tests.support.tiny_models import all_configs, reference, text_of

SEQ2SEQ = all_configs("SEQ2SEQ_CONFIGS")
# Of which transformers has none, or which are read as kimi_k2 and nemotron_h_omni.
WITHOUT_CLASS = (
    *("arctic", "bailing_moe", "deepseek", "deepseek_v41", "kimi_k25", "maple", "minicpm", "nemo_speechlm"),
    *("glm5v", "grok", "grove_moe", "k2_horizon", "kimi_k3", "longcat_flash_ngram", "mimo_v2", "smallthinker"),
)
FAMILIES: dict[str, dict[str, Any]] = {}  # the first config of each
for _config in (all_configs() | SEQ2SEQ).values():
    if _config["model_type"] not in WITHOUT_CLASS:
        FAMILIES.setdefault(_config["model_type"], _config)

# They say nothing about the mathematics of inference, or have no other value.
NEITHER = {
    "model_type",
    "vocab_size",
    "dtype",
    "transformers_version",
    "architectures",
    "output_hidden_states",
    "return_dict",
    "is_encoder_decoder",
    "id2label",
    "label2id",
    "problem_type",
    "use_cache",
    "output_router_logits",
    "is_decoder",
    "add_cross_attention",
    "pad_token_id",
    "eos_token_id",
    "bos_token_id",
    "mamba_ssm_cache_dtype",  # here float32
    "mtp_layers_block_type",  # of what guesses tokens ahead
}
# transformers reads them as well, or a published config has them, though no field of the class is named so.
UNDECLARED: dict[str, list[Any]] = {
    "rope_theta": [500.0],
    "partial_rotary_factor": [0.5],
    "head_dim": [8],
    "attention_bias": [True],
    "sliding_window": [5],
    "use_sliding_window": [True],
    "full_attention_interval": [2, 3],
    "original_max_position_embeddings": [16],
    "num_nextn_predict_layers": [2],
    "scoring_func": ["softmax", "sigmoid"],
    "encoder_sparse_step": [1, 3, 4],
    "decoder_sparse_step": [1, 3],
    "feed_forward_proj": ["gated-gelu"],
    "per_layer_config": [{"1": {"head_dim": 8}}],
    "num_attention_heads": [2],
    "num_hidden_layers": [2],
    "hidden_size": [32],
    "num_experts": [4, 16],
    "num_local_experts": [4, 16],
    "rotary_dim": [8],
    "router_bias": [True],
}
FOR_TRAINING = {"attention_dropout", "initializer_range", "chunk_size_feed_forward"}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
ROPES: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "default", "rope_theta": 500.0},
    {"rope_type": "default", "rope_theta": 500.0, "factor": 1.0},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 1.0, "alpha": 8.0},
    {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    {"rope_type": "linear", "factor": 4.0, "partial_rotary_factor": 0.5},
    {"rope_type": "axial"},
    *(
        _YARN | other
        for other in (
            {},
            {"beta_fast": 8.0},
            {"beta_slow": 4.0},
            {"truncate": False},
            {"attention_factor": 1.5},
            {"mscale": 0.5},
            {"mscale": 0.8, "mscale_all_dim": 0.5},
            {"mscale_all_dim": 0.5},
            {"mscale": 1.0, "mscale_all_dim": 0},
            {"mscale": 0, "mscale_all_dim": 0.5},
            {"beta_fast": 0, "beta_slow": 0},
            {"llama_4_scaling_beta": 0.5},
            {"original_max_position_embeddings": 16},
            {"factor": None},
            {"factor": 0.5},
        )
    ),
    *(
        _LLAMA3 | other
        for other in ({}, {"low_freq_factor": 2.0}, {"high_freq_factor": 8.0}, {"original_max_position_embeddings": 16})
    ),
    *(
        {
            "rope_type": "longrope",
            "original_max_position_embeddings": trained,
            **scales,
            "short_factor": [1 + i / 10 for i in range(pairs)],
            "long_factor": [2.0 + i for i in range(pairs)],
        }
        for pairs in (4, 6, 8, 12)
        for trained in (16, 64)
        for scales in ({}, {"attention_factor": 1.2, "factor": 4.0})
    ),
    *(  # of models whose kinds of layers have positions of their own
        {"sliding_attention": sliding, "full_attention": full}
        for sliding, full in (
            ({"rope_type": "default", "rope_theta": 500.0}, {"rope_type": "default", "rope_theta": 1e4}),
            (
                {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
                {"rope_type": "proportional", "rope_theta": 1e4},
            ),
            (
                {"rope_type": "default", "rope_theta": 500.0},
                {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "factor": 2.0},
            ),
        )
    ),
]
ACTIVATIONS = ["silu", "swish", "gelu", "gelu_pytorch_tanh", "relu", "relu2", "quick_gelu"]
WORDS: dict[str, list[Any]] = {
    "mamba_hidden_act": ["gelu"],
    "mlp_hidden_act": ACTIVATIONS,
    "moe_latent_size": [32],
    "scoring_func": ["softmax", "sigmoid"],
    "expert_selection_fn": ["sigmoid", "tanh"],
    "shared_expert_combination_strategy": ["sum"],
    "rms_norm_eps": [0.1, 0.0, 0],
    "attn_logit_softcapping": [2.5],
    "final_logit_softcapping": [2.5],
    "output_gate_type": ["sigmoid", "silu"],
    "position_embedding_type": ["rope", "nope", "alibi"],
    "time_step_limit": [[0.5, 2.0], [0.0, 0.1]],
    "time_step_min": [0.01, 0.1, 0.5],
    "hidden_act": ACTIVATIONS,
    "hidden_activation": ACTIVATIONS,
    "use_bidirectional_attention": ["all", "vision"],
    "activation_function": ACTIVATIONS,
    "dense_act_fn": ACTIVATIONS,
    "router_dtype": ["bfloat16"],
    "second_expert_policy": ["random"],
    "topk_method": ["greedy", "group_limited_greedy"],
    "num_hidden_layers": [2, 4],
    "mlp_only_layers": [[0], [1], None],
    "rope_parameters": [{}, *ROPES],
    "rope_scaling": ROPES[2::5],
    "moe_token_dropout": [0.0, 0.7],
    "layer_types": [
        ["sliding_attention", "full_attention"],
        ["full_attention"],
        ["linear_attention", "full_attention"],
    ],
    "mlp_layer_types": [["sparse"], ["sparse", "dense"]],
    "linear_attn_config": [
        {"head_dim": 8, "num_heads": 2, "short_conv_kernel_size": 3, "kda_layers": [1, 3, 4], "full_attn_layers": [2]}
    ],
    "moe_layers": [[0], [1, 3]],
    "local_layer_ids": [[0], [1, 2]],
    "mtp_local_layer_ids": [[0]],
    "no_rope_layers": [[1, 0, 1, 1], [0, 0, 1, 0]],
    "layer_rope_theta": [[0.0, 10000.0, 0.0], [500.0, 10000.0, 10000.0]],
    "attn_config": [
        {"kv_n_heads": 2, "rope_theta": 10000.0},
        {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 0.2},
        {"kv_n_heads": 4, "rope_theta": 10000.0, "clip_qkv": 0.8},
    ],
    "ffn_config": [
        {"ffn_hidden_size": 24, "moe_num_experts": 8, "moe_top_k": 3} | other
        for other in (
            {"ffn_hidden_size": 48},
            {"moe_num_experts": 4},
            {"moe_top_k": 2},
            {"ffn_act_fn": {"name": "gelu"}},
            {"ffn_act_fn": {"name": "gelu_new"}},
            {"ffn_act_fn": {"name": "selu"}},
            {"moe_normalize_expert_weights": None},
            {"moe_normalize_expert_weights": 2.0},
            {"moe_jitter_eps": 0.5},
        )
    ],
    "compress_rates": [{"compressed_sparse_attention": 4, "heavily_compressed_attention": 8}],
    "indexer_types": [["full"] * 3, ["full", "full", "shared", "shared"], ["full", "full", "shared"], ["full"] * 5],
    "num_attention_heads_per_layer": [[6, 4, 4], [4, 4, 4]],
    "kv_source_layers": [[0, 1, 2, 3, 4], [0, 0, 0, 0, 4]],
    "layers_block_type": [
        ["moe", "linear_attention", "moe", "full_attention", "linear_attention", "mlp"],
        ["linear_attention", "moe", "mlp", "full_attention", "mlp", "moe"],
    ],
    "ple_layer_ids": [[0], [0, 2]],
    "swiglu_limits": [[None, 0.3, 0.0], [0.0, 0.2, 0.1]],
    "swiglu_limits_shared": [[None, 0.2, 0.0], [0.0, 0.3, 0.1]],
    "moe_norm_min": [1e-3, 0.5, 2.0],
    # for which null is a value
    "partial_rotary_factor": [0.5, None],
    "head_dim": [8, 32, None],
    "attention_multiplier": [0.3, None],
    "sliding_window": [5, None],
    "clip_qkv": [0.5, None],
    "n_group": [2, 1, None],
    "topk_group": [1, None],
    "q_lora_rank": [20, None],
    "num_key_value_heads": [1, 4, None],
    "norm_topk_prob": [True, False, None],
    "rope_interleave": [True, False, None],
}
# Values of which the reference makes less than the config says, or another thing than published code does.
DIFFERENT: dict[tuple[str, str], list[Any]] = {
    ("deepseek_v2", "norm_topk_prob"): [True],
    ("minimax", "rotary_dim"): [8],  # transformers rotates whole heads
    # transformers raises steps to 0.001, in prompts alone; published code takes it for a bound of initial values
    ("nemotron_h", "time_step_min"): ["missing"],
    # transformers looks for it beside the kinds of layers, where no config has it
    ("step3p7", "rope_scaling"): [_YARN | {"truncate": False}],
}


# Where no other value of a field can be computed by transformers, and why.
NOT_COMPUTED = {
    ("olmoe", "head_dim"): "its norms of queries and keys are as wide as the hidden size",
    ("phimoe", "head_dim"): "its rotary embedding takes the hidden size by the number of heads",
    ("gpt_oss", "partial_rotary_factor"): "its rotary embedding wants whole heads",
    ("phimoe", "partial_rotary_factor"): "its factors of longrope are as many as for whole heads",
    ("solar_open", "partial_rotary_factor"): "its rotary embedding wants whole heads",
    ("gemma4", "rope_scaling"): "it takes rope_parameters alone, of each kind of layer",
    ("mellum", "rope_scaling"): "it takes rope_parameters alone, of each kind of layer",
    ("mimo_v2_flash", "rope_scaling"): "it takes rope_parameters alone, of each kind of layer",
    ("laguna", "rope_scaling"): "it takes rope_parameters alone, of each kind of layer",
    ("mellum", "num_nextn_predict_layers"): "it has one such layer at most, which is no part of the model",
    ("mellum", "num_mtp_layers"): "it is no part of the model",
    ("mellum", "mtp_layer_types"): "it is no part of the model",
    ("mellum", "mtp_mlp_layer_types"): "it is no part of the model",
    ("step3p7", "mtp_layer_types"): "it is no part of the model",
    ("step3p7", "mtp_mlp_layer_types"): "it is no part of the model",
    ("ernie4_5_vl_moe", "head_dim"): "its sections of mrope are those of its heads",
    ("glm4v_moe", "head_dim"): "its sections of mrope are those of its heads",
    ("nllb-moe", "per_layer_config"): "transformers knows layers of their own in decoders alone",
    ("switch_transformers", "per_layer_config"): "transformers knows layers of their own in decoders alone",
}

# Of which the default makes tables of gigabytes: they are compared by their shapes, and nothing is computed.
TOO_LARGE = {("qwen4_exp", "ngram_vocab_size_base")}

# What transformers calls the configuration of a family's language model, where it is not the family's own name.
KNOWN_AS = {
    "glm5_next": "glm5_next_text",
    "ernie4_5_vl_moe": "ernie4_5_vl_moe_text",
    "aria": "aria_text",
    "deepseek_ocr2": "deepseek_ocr2_text",
    "gemma4": "gemma4_text",
    "hy_v4_vl": "hy_v4_vl_text",
    "llama4": "llama4_text",
    "step3p7": "step3p5",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "nemotron_h_omni": "nemotron_h",
    "mistral_large4": "mistral_large4_text",
    "dots3_note": "dots3_note_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen4_exp": "qwen4_exp_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_omni_moe": "qwen3_omni_moe_text",
    "glm4v_moe": "glm4v_moe_text",
    "inkling_mm_model": "inkling_text",
    "muse_spark": "muse_spark_text",
    "inkling2": "inkling2_text",
    "inkling2_loop": "inkling2_loop_text",
    "kimi_k2": "deepseek_v3",
}
# What is before the names of the tensors of a part that transformers also has alone.
BEFORE = {"qwen3_omni_moe": "thinker."}
# With which the layers of a family are alike, so that its configuration has a value of each field.
ALIKE: dict[str, dict[str, Any]] = {
    "gemma4": {"per_layer_config": {}},
    "dots3_note": {"per_layer_config": {}, "layer_types": ["indexed_attention"] * 46},
}


@cache
def known_fields(family: str) -> dict[str, Any]:
    """Name and present value of what the reference, or the family's own config, has a field for."""
    from transformers import AutoConfig

    made = AutoConfig.for_model(KNOWN_AS.get(family, family), **ALIKE.get(family, {}))
    declared = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    found: dict[str, Any] = dict.fromkeys(looked_for(type(made))) | declared | text_of(FAMILIES[family])
    return found | ({"rope_scaling": None} if "rope_parameters" in declared else {})


def fields_of(family: str) -> dict[str, Any]:
    """Name and present value of what may be set."""
    found = dict.fromkeys(UNDECLARED) | known_fields(family)
    return {name: value for name, value in found.items() if name not in NEITHER}


def looked_for(config_class: type) -> list[str]:
    """Fields that the code of a model looks for, whether its configuration declares them or not."""
    declaring = Path(str(sys.modules[config_class.__module__].__file__))
    code = declaring.with_name(declaring.name.replace("configuration_", "modeling_"))
    found = re.findall(r'\b(?:get|has)attr\((?:self\.)?config, "([a-z]\w*)"', code.read_text() if code.exists() else "")
    return sorted(set(found) - {"audio_config"})


def with_text(config: dict[str, Any], text: dict[str, Any]) -> dict[str, Any]:
    if "thinker_config" in config:
        return config | {"thinker_config": with_text(config["thinker_config"], text)}
    return config | {"text_config": text} if "text_config" in config else text


def other_values(name: str, value: Any, num_layers: int) -> list[Any]:
    """On both sides of the present one, so near that it might not matter and so far that it must."""
    if name in ("layer_types", "mlp_layer_types"):
        return [(kinds * num_layers)[:num_layers] for kinds in WORDS[name]]
    if name in WORDS:
        return WORDS[name]
    if name in UNDECLARED and value is None:
        return UNDECLARED[name]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value, value // 2] if value > 1 else [value + 1]
    return [value * 1.7 + 0.1, value / 4] if isinstance(value, float) else []


def changed(family: str, name: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The values of this field, null and "missing" among them, and the configs that have them."""
    whole, value = FAMILIES[family], fields_of(family)[name]
    config = {key: v for key, v in text_of(whole).items() if not (name == "rope_scaling" and key == "rope_parameters")}
    others = other_values(name, value, config.get("num_hidden_layers", 0))
    if config.get(name) is not None and None not in others and (family, name) not in TOO_LARGE:
        others = [*others, None]
    for other in others:
        if name not in config or other != value:
            yield other, copy.deepcopy(with_text(whole, config | {name: other}))
    if name in config and (family, name) not in TOO_LARGE:
        yield "missing", copy.deepcopy(with_text(whole, {key: v for key, v in config.items() if key != name}))


class NotComputedError(Exception):
    """The reference cannot compute this config: there is nothing to be equal to."""


def theirs(config: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of the reference over random weights, and these weights. Raises NotComputedError."""
    torch.manual_seed(7)
    seq2seq = config["model_type"] in {each["model_type"] for each in SEQ2SEQ.values()}
    ids = torch.tensor([PROMPT])
    try:
        model = reference(copy.deepcopy(config), "AutoModelForSeq2SeqLM" if seq2seq else "AutoModelForCausalLM")
    except Exception as error:  # whatever the reference says
        raise NotComputedError from error
    for name, parameter in (*model.named_parameters(), *model.named_buffers()):
        if "norm" in name or name.endswith("bias"):
            parameter.add_(torch.randn_like(parameter) * 0.1)
    try:
        logits = model(input_ids=ids, decoder_input_ids=ids).logits[0] if seq2seq else model(ids).logits[0]
    except Exception as error:
        raise NotComputedError from error
    if not logits.isfinite().all():
        raise NotComputedError
    before = BEFORE.get(config["model_type"], "")
    return logits, {f"{before}{name}": tensor for name, tensor in published(model).items()}


def published(model: Any) -> dict[str, Tensor]:
    """The weights as `save_pretrained` names and cuts them, without the way over a file."""
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    left_out = model._keys_to_ignore_on_save or ()
    kept = {name: tensor for name, tensor in model.state_dict().items() if name not in left_out}
    own = remove_tied_weights_from_state_dict(kept, model)
    converted = revert_weight_conversion(model, own).items()
    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in converted}


def ours(config: dict[str, Any], tensors: dict[str, Tensor], kernels: Kernels) -> Tensor:
    family = family_of(config)
    plan = family.tensors
    plan, tensors = owning(plan, {plan_name(name, plan): each for name, each in read_by(plan, tensors).items()})
    layout = layout_in(plan, tensors)
    assert plan.dense.keys() | layout.keys() == tensors.keys()
    assert all(tuple(tensors[name].shape) == shape for name, shape in plan.dense.items())
    weights = NativeLayers(kernels, {name: stored(tensor) for name, tensor in tensors.items()}, "f32")
    model = family.build(weights, resident_experts(plan, tensors, kernels), Profiler())
    cache = model.new_cache(len(PROMPT))
    if hasattr(model, "encode"):
        model.encode(PROMPT, cache)
    logits: np.ndarray[Any, Any] = model.forward(PROMPT, cache, last_only=False)
    return torch.from_numpy(logits)


def refusal_of(config: dict[str, Any]) -> str:
    try:
        family_of(config)
    except CheckpointError as error:
        return str(error)
    return ""


def agree(config: dict[str, Any]) -> bool:
    """Whether moeinf computes what the reference does; False where it refuses. Raises NotComputedError."""
    wanted, tensors = theirs(config)
    if refusal_of(config):
        return False
    logits = ours(config, tensors, Kernels(1))
    return logits.shape == wanted.shape and bool(
        (logits - wanted).abs().max() < 2e-4 * max(1.0, float(wanted.abs().max()))
    )


@cache
def followed_together(family: str) -> frozenset[str]:
    """Fields which this family does not know, or which are for training, where all of them were set at once and the
    logits are those of the reference: none of them is ignored alone. Empty where they are not, or nothing is computed.
    """
    whole, values = FAMILIES[family], dict[str, list[Any]]()
    for name in fields_of(family):
        excepted = (family, name) in DIFFERENT.keys() | NOT_COMPUTED.keys()
        if not excepted and (name in FOR_TRAINING or name not in known_fields(family)):
            found = list(changed(family, name))
            if found and not any(refusal_of(config) for _, config in found):
                values[name] = [value for value, _ in found]
    for at in range(max(map(len, values.values()), default=0)):
        chosen = {name: each[at % len(each)] for name, each in values.items()}
        text = {name: value for name, value in (text_of(whole) | chosen).items() if value != "missing"}
        try:
            if not agree(copy.deepcopy(with_text(whole, text))):
                return frozenset()
        except NotComputedError:
            return frozenset()
    return frozenset(values)


def cases(listed: Collection[tuple[str, str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("family", "name"), listed, ids=["-".join(case) for case in listed])


def wrong_with(family: str, name: str) -> str:
    """What a field is neither followed nor refused by name with; empty where it is."""
    checked = 0
    for value, config in changed(family, name):
        refusal = refusal_of(config)
        if value in DIFFERENT.get((family, name), []):
            checked += 1
            continue
        if not re.search(rf"\b{name}\b", refusal):
            try:
                if not agree(config):
                    return f"{value!r}: {refusal or 'other logits'}"
            except NotComputedError:
                continue
        checked += 1
    return "" if checked else "nothing was compared or refused: find another value, or write it into NOT_COMPUTED"


@torch.inference_mode()
@pytest.mark.parametrize("family", FAMILIES)
def test_each_field_is_followed_or_refused_by_name(family: str) -> None:
    """In one test: the fields of all families are known from transformers, in seconds of each process that collects.

    Most fields are those of many families: `make test` tries each with a third of these.
    """
    alone = fields_of(family).keys() - followed_together(family)
    if SAMPLED:
        alone = {name for name in alone if crc32(f"{family} {name}".encode()) % 3 == 0}
    wrong = {name: wrong_with(family, name) for name in sorted(alone) if (family, name) not in NOT_COMPUTED}
    assert not {name: said for name, said in wrong.items() if said}


@torch.inference_mode()
@cases(NOT_COMPUTED)
def test_what_the_reference_cannot_compute_is_still_so(family: str, name: str) -> None:
    for value, config in changed(family, name):
        if value is not None:
            with pytest.raises(NotComputedError):
                theirs(config)


@torch.inference_mode()
@cases(DIFFERENT)
def test_where_the_reference_does_less_than_a_config_says_it_still_does(family: str, name: str) -> None:
    configs = [config for value, config in changed(family, name) if value in DIFFERENT[family, name]]
    assert len(configs) == len(DIFFERENT[family, name]) and not any(map(agree, configs))


@torch.inference_mode()
@cases(TOO_LARGE)
def test_a_default_that_is_too_large_to_compute_makes_tables_of_the_references_shape(family: str, name: str) -> None:
    whole = FAMILIES[family]
    config = with_text(whole, {key: value for key, value in text_of(whole).items() if key != name})
    with torch.device("meta"):
        wanted = published(reference(copy.deepcopy(config)))
    plan = family_of(config).tensors
    found = {plan_name(each, plan): tuple(tensor.shape) for each, tensor in read_by(plan, wanted).items()}
    assert max(map(math.prod, found.values())) > 1e8
    assert plan.dense.items() <= found.items()


def test_every_exception_is_a_case() -> None:
    known = {(family, name) for family in FAMILIES for name in fields_of(family)}
    assert DIFFERENT.keys() | NOT_COMPUTED.keys() | TOO_LARGE <= known
    assert not DIFFERENT.keys() & NOT_COMPUTED.keys()
