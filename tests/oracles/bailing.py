"""Ling and Ring (bailing_moe, bailing_moe_v2) in plain torch, without a cache, as transformers has neither.

Written from what the published modeling code computes (modeling_bailing_moe.py of inclusionAI/Ling and
modeling_bailing_moe_v2.py of inclusionAI/Ling-V2); nothing of moeinf is used.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.oracles.reference import Reference

Config = dict[str, Any]


def second(config: Config) -> bool:
    """Whether a config is of the second generation: sigmoid scores, groups, half of each head turned."""
    return str(config["architectures"][0]).startswith("BailingMoeV2")


class Mlp(nn.Module):
    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


class Gate(nn.Module):
    """The weight of every expert for every token: 0 for all but those that it uses."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config["num_experts"], config["hidden_size"]))
        if second(config):
            self.expert_bias: Tensor
            self.register_buffer("expert_bias", torch.randn(config["num_experts"]) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        c, logits = self.config, x @ self.weight.T
        if not second(c):
            scores = logits.softmax(-1)
            chosen = scores.topk(c["num_experts_per_tok"]).indices
            weights = torch.zeros_like(scores).scatter(1, chosen, scores.gather(1, chosen))
            return weights / weights.sum(-1, keepdim=True) if c["norm_topk_prob"] else weights
        scores = logits.sigmoid()
        by = (scores + self.expert_bias).unflatten(1, (c["n_group"], -1))
        worst = by.topk(2).values.sum(-1).topk(c["topk_group"])
        kept = torch.full_like(by, -math.inf)
        for token, groups in enumerate(worst.indices):
            kept[token, groups] = by[token, groups]
        chosen = kept.flatten(1).topk(c["num_experts_per_tok"]).indices
        weights = torch.zeros_like(scores).scatter(1, chosen, scores.gather(1, chosen))
        scaled: Tensor = weights / weights.sum(-1, keepdim=True) * c["routed_scaling_factor"]
        return scaled


class Moe(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, size = config["hidden_size"], config["moe_intermediate_size"]
        self.gate = Gate(config)
        self.experts = nn.ModuleList(Mlp(hidden, size) for _ in range(config["num_experts"]))
        if config["num_shared_experts"]:
            self.shared_experts = Mlp(hidden, size * config["num_shared_experts"])

    def forward(self, x: Tensor) -> Tensor:
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        mixture: Tensor = (self.gate(x)[..., None] * outputs).sum(1)
        return mixture + self.shared_experts(x) if hasattr(self, "shared_experts") else mixture


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        hidden = config["hidden_size"]
        self.size = config.get("head_dim") or hidden // self.heads
        self.turns = int(self.size * config.get("partial_rotary_factor", 1.0))
        self.theta = config["rope_theta"]
        self.query_key_value = nn.Linear(hidden, (self.heads + 2 * self.kv_heads) * self.size, bias=False)
        self.dense = nn.Linear(self.heads * self.size, hidden, bias=False)
        if config.get("use_qk_norm"):
            self.query_layernorm = nn.RMSNorm(self.size, config["rms_norm_eps"])
            self.key_layernorm = nn.RMSNorm(self.size, config["rms_norm_eps"])

    def forward(self, x: Tensor) -> Tensor:
        heads = self.query_key_value(x).view(len(x), -1, self.size).transpose(0, 1)
        q, k, v = heads.split([self.heads, self.kv_heads, self.kv_heads])
        if hasattr(self, "query_layernorm"):
            q, k = self.query_layernorm(q), self.key_layernorm(k)
        q, k = self.turned(q), self.turned(k)
        k, v = (part.repeat_interleave(self.heads // self.kv_heads, 0) for part in (k, v))
        later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(1, 2) / math.sqrt(self.size)).masked_fill(later, -math.inf)
        result: Tensor = self.dense((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))
        return result

    def turned(self, x: Tensor) -> Tensor:
        """Each pair (i, i + turns / 2) of the first `turns` as a complex number, times e^(i place frequency)."""
        first, other = x[..., : self.turns].chunk(2, -1)
        frequencies = self.theta ** (-torch.arange(0, self.turns, 2) / self.turns)
        angles = torch.arange(x.shape[1])[:, None] * frequencies
        product = torch.complex(first, other) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([product.real, product.imag, x[..., self.turns :]], -1)


class Layer(nn.Module):
    def __init__(self, config: Config, index: int) -> None:
        super().__init__()
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.attention = Attention(config)
        sparse = index >= config["first_k_dense_replace"]
        self.mlp = Moe(config) if sparse else Mlp(hidden, config["intermediate_size"])
        self.input_layernorm = nn.RMSNorm(hidden, eps)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.input_layernorm(x))
        result: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return result


class BailingReference(Reference):
    """With as much of transformers' interface as the parity tests use: one sequence at a time, greedy."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        hidden, vocabulary = config["hidden_size"], config["vocab_size"]
        layers = nn.ModuleList(Layer(config, i) for i in range(config["num_hidden_layers"]))
        norm = nn.RMSNorm(hidden, config["rms_norm_eps"])
        self.model = nn.ModuleDict(
            {"word_embeddings": nn.Embedding(vocabulary, hidden), "layers": layers, "norm": norm}
        )
        self.lm_head = nn.Linear(hidden, vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=config["initializer_range"])

    def forward(self, ids: Tensor) -> SimpleNamespace:
        x = self.model["word_embeddings"](ids[0])
        for layer in self.model["layers"]:  # type: ignore[attr-defined]
            x = layer(x)
        return SimpleNamespace(logits=self.lm_head(self.model["norm"](x))[None])
