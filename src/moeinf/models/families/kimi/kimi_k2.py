"""Kimi K2: DeepSeek-V3 under a name of its own, with more experts and fewer heads (arXiv 2507.20534)."""

from __future__ import annotations

from moeinf.models.families.deepseek import deepseek_v3


class Family(deepseek_v3.Family):
    name = "kimi_k2"
    # Published files have tables of 56 numbers, where a head turns by 32: no program reads them.
    ignored = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)
