"""Tiny configs of Phi-3."""

from tests.support.tiny_models import COMMON

_FACTORS = [1.0, 1.1, 1.2, 1.5, 1.9, 2.4]
PHI3 = COMMON | {"model_type": "phi3", "intermediate_size": 96, "pad_token_id": 2}
CONFIGS = {
    "phi3": PHI3,
    "phi3 long, part of heads, sliding window": PHI3
    | {
        "sliding_window": 9,
        "original_max_position_embeddings": 16,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.75,
            "short_factor": _FACTORS,
            "long_factor": [2 * each for each in _FACTORS],
            "original_max_position_embeddings": 16,
        },
    },
}
