"""Tiny configs of MiniCPM, with experts and without."""

from tests.oracles.decoders.scaled_residuals import MiniCpmReference
from tests.support.tiny_models import COMMON

MINICPM = COMMON | {
    "model_type": "minicpm",
    "rms_norm_eps": 1e-5,
    "intermediate_size": 48,
    "scale_emb": 3.0,
    "scale_depth": 1.4,
    "dim_model_base": 32,
    "tie_word_embeddings": True,
}
CONFIGS = {
    "minicpm": MINICPM,
    "minicpm experts, untied": MINICPM | {"tie_word_embeddings": False, "num_experts": 8, "num_experts_per_tok": 2},
}
REFERENCE = MiniCpmReference
