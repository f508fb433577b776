"""Qwen3-MoE: 128 small experts a layer, per-head norms on queries and keys (arXiv 2505.09388)."""

from __future__ import annotations

from moeinf.models.families.qwen.qwen2_moe import qwen_moe
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms, Sight
from moeinf.models.layers.decoder import parse_decoder


class Family(DecoderFamily):
    name = "qwen3_moe"

    @staticmethod
    def parse(f: Fields) -> Spec:
        window = None
        if f.flag("use_sliding_window", False):  # null is no window
            window = f.count("sliding_window", 0 if "sliding_window" in f else 4096) or None
        decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4, head_norms=HeadNorms(), sight=Sight(window))
        return Spec(decoder, qwen_moe(f, decoder.num_layers, norm_topk_prob=False, shared=False))
