"""Tiny configs of MiniMax-Text-01, of which the first layer may be linear, as it is in published checkpoints."""

from typing import Any

from tests.support.tiny_models import COMMON, transformers_model

MINIMAX: dict[str, Any] = COMMON | {
    "model_type": "minimax",
    "num_hidden_layers": 4,
    "head_dim": 20,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size": 96,
    "block_size": 8,
    "full_attn_alpha_factor": 1.5,
    "full_attn_beta_factor": 0.8,
    "linear_attn_alpha_factor": 1.3,
    "linear_attn_beta_factor": 1.2,
    "mlp_alpha_factor": 1.4,
    "mlp_beta_factor": 0.7,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "minimax": MINIMAX,
    "minimax sliding window, layer types": MINIMAX
    | {
        "sliding_window": 9,
        "hidden_act": "gelu",
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    },
}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers', whose cache asks its first layer for its length, be that linear, which has none: mended."""
    from transformers.models.minimax.modeling_minimax import MiniMaxCache

    def length(cache: Any, layer_idx: int = 0) -> int:
        return max((layer.get_seq_length() for layer in cache.layers), default=0)

    kind: Any = MiniMaxCache
    kind.get_seq_length = length
    kind.get_mask_sizes = lambda cache, query_length, layer_idx: (length(cache) + query_length, 0)
    return transformers_model(config)
