"""What files of models without experts say, as the config.json of their families."""

from __future__ import annotations

from collections.abc import Callable

from moeinf.errors import UnsupportedModelError
from moeinf.gguf.configs.common import (
    granite_multipliers,
    head_dim_of,
    num_layers_of,
    plain_heads,
    positions_of,
    refuse_unless,
    slides_of,
)
from moeinf.gguf.configs.plain import gemma4, minicpm
from moeinf.gguf.metadata import Metadata
from moeinf.types import JsonObject

# The Gemmas whose scores go by the width of the hidden state, as llama.cpp tells them.
_LAYERS_OF_27B, _LAYERS_OF_GEMMA_2_27B = 62, 46


def _mlp(m: Metadata) -> JsonObject:
    return {"intermediate_size": m.count("feed_forward_length"), "mlp_bias": m.has_in_a_layer("ffn_up.bias")}


def _llama(m: Metadata) -> JsonObject:
    window = m.count("attention.sliding_window", 0)
    own: JsonObject = {"model_type": "mistral", "sliding_window": window} if window else {"model_type": "llama"}
    return plain_heads(m) | _mlp(m) | own


def _whole_heads(m: Metadata) -> JsonObject:
    head_dim = head_dim_of(m)
    refuse_unless(m, m.count("rope.dimension_count", head_dim) == head_dim, "rope.dimension_count")
    return {"head_dim": head_dim} | _mlp(m)


def _qwen2(m: Metadata) -> JsonObject:
    return _whole_heads(m) | {"model_type": "qwen2", "attention_bias": False, "attention_out_bias": False}


def _gemma(m: Metadata) -> JsonObject:
    return _whole_heads(m) | {"model_type": "gemma", "hidden_act": "gelu_pytorch_tanh"}


def _gemma2(m: Metadata) -> JsonObject:
    layers, found = num_layers_of(m), _whole_heads(m)
    slides = slides_of(m, lambda i: i % 2 == 1)
    heads, hidden = m.count("attention.head_count"), m.count("embedding_length")
    return found | {
        "model_type": "gemma2",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": hidden // heads if layers == _LAYERS_OF_GEMMA_2_27B else found["head_dim"],
        "sliding_window": m.count("attention.sliding_window", 4096) or None,
        "layer_types": ["sliding_attention" if each else "full_attention" for each in slides],
        "attn_logit_softcapping": m.number("attn_logit_softcapping", 50.0) or None,
        "final_logit_softcapping": m.number("final_logit_softcapping", 30.0) or None,
    }


def _gemma3(m: Metadata) -> JsonObject:
    layers, found = num_layers_of(m), _whole_heads(m)
    slides = slides_of(m, lambda i: (i + 1) % 6 == 0)
    heads, hidden = m.count("attention.head_count"), m.count("embedding_length")
    positions = {"rope_type": "default", "rope_theta": m.number("rope.freq_base", 1e6)}
    return found | {
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": hidden // heads if layers == _LAYERS_OF_27B else found["head_dim"],
        "sliding_window": m.count("attention.sliding_window"),
        "layer_types": ["sliding_attention" if each else "full_attention" for each in slides],
        "final_logit_softcapping": m.number("final_logit_softcapping", 0.0) or None,
        "rope_theta": None,
        "rope_scaling": None,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": m.number("rope.freq_base_swa", 1e4)},
            "full_attention": positions | positions_of(m).get("rope_scaling", {}),
        },
    }


def _phi3(m: Metadata) -> JsonObject:
    window = m.count("attention.sliding_window", 0)
    trained = m.count("rope.scaling.original_context_length", 0) or m.count("context_length")
    own = {"sliding_window": window or None, "original_max_position_embeddings": trained}
    return plain_heads(m) | _mlp(m) | own | {"model_type": "phi3"}


def _granite(m: Metadata) -> JsonObject:
    return plain_heads(m) | granite_multipliers(m) | _mlp(m) | {"model_type": "granite"}


def _glm(m: Metadata) -> JsonObject:
    """Files that were made of the code published with GLM-4-9B have queries, keys and values in one tensor."""
    biased = m.has_in_a_layer("attn_q.bias") or m.has_in_a_layer("attn_qkv.bias")
    found = plain_heads(m) | {"attention_bias": biased, "attention_out_bias": False}
    found.setdefault("partial_rotary_factor", 1.0)
    return found | _mlp(m) | {"model_type": "glm" if m.architecture == "chatglm" else "glm4"}


def _ernie4_5(m: Metadata) -> JsonObject:
    unbiased = {"use_bias": False, "attention_bias": False, "attention_out_bias": False}  # other tensors are refused
    return plain_heads(m) | _mlp(m) | unbiased | {"model_type": "ernie4_5"}


def _smollm3(m: Metadata) -> JsonObject:
    return plain_heads(m) | _mlp(m) | {"model_type": "smollm3", "no_rope_layer_interval": 4}  # as llama.cpp has it


def _starcoder2(m: Metadata) -> JsonObject:
    biased = m.has_in_a_layer("attn_q.bias")
    for name in ("attn_output", "ffn_up", "ffn_down"):
        if m.has_in_a_layer(f"{name}.bias") != biased:
            raise UnsupportedModelError(f"{m.where}: 'blk.<layer>.{name}.bias' is there without others, or missing")
    own = {"use_bias": biased, "attention_bias": None, "norm_epsilon": m.number("attention.layer_norm_epsilon")}
    return _whole_heads(m) | own | {"model_type": "starcoder2", "hidden_act": "gelu_pytorch_tanh"}


DENSE: dict[str, Callable[[Metadata], JsonObject]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": lambda m: _whole_heads(m) | {"model_type": "qwen3"},
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma4": gemma4,
    "phi3": _phi3,
    "granite": _granite,
    "glm4": _glm,
    "chatglm": _glm,
    "ernie4_5": _ernie4_5,
    "smollm3": _smollm3,
    "starcoder2": _starcoder2,
    "minicpm": minicpm,
    "olmo2": lambda m: _whole_heads(m) | {"model_type": "olmo2"},
}
