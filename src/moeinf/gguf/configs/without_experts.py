"""What files of models without experts say, as the config.json of their families."""

from __future__ import annotations

from collections.abc import Callable

from moeinf.gguf.configs.common import (
    granite_multipliers,
    head_dim_of,
    num_layers_of,
    plain_heads,
    positions_of,
    refuse_unless,
    slides_of,
)
from moeinf.gguf.metadata import Metadata
from moeinf.types import JsonObject

_LAYERS_OF_27B = 62  # the Gemma 3 whose scores go by the width of the hidden state, as llama.cpp tells it


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


def _glm4(m: Metadata) -> JsonObject:
    found = plain_heads(m)
    found.setdefault("partial_rotary_factor", 1.0)
    return found | _mlp(m) | {"model_type": "glm4", "attention_out_bias": False}


def _ernie4_5(m: Metadata) -> JsonObject:
    unbiased = {"use_bias": False, "attention_bias": False, "attention_out_bias": False}  # other tensors are refused
    return plain_heads(m) | _mlp(m) | unbiased | {"model_type": "ernie4_5"}


def _smollm3(m: Metadata) -> JsonObject:
    return plain_heads(m) | _mlp(m) | {"model_type": "smollm3", "no_rope_layer_interval": 4}  # as llama.cpp has it


DENSE: dict[str, Callable[[Metadata], JsonObject]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": lambda m: _whole_heads(m) | {"model_type": "qwen3"},
    "gemma": _gemma,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "granite": _granite,
    "glm4": _glm4,
    "ernie4_5": _ernie4_5,
    "smollm3": _smollm3,
    "olmo2": lambda m: _whole_heads(m) | {"model_type": "olmo2"},
}
