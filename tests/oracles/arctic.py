"""Snowflake Arctic in plain torch, without a cache: what moeinf's is compared with, as transformers has none.

Written from the layer order of the modeling code that Snowflake published with its checkpoint (modeling_arctic.py and
configuration_arctic.py of Snowflake/snowflake-arctic-instruct); nothing of moeinf is used.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.oracles.reference import Reference


class Mlp(nn.Module):
    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(hidden, intermediate, bias=False)
        self.w2 = nn.Linear(intermediate, hidden, bias=False)
        self.w3 = nn.Linear(hidden, intermediate, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return result


class Moe(nn.Module):
    """Every expert on every token, times its weight, which is 0 for all but the best of the token."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden, count = config["hidden_size"], config["num_local_experts"]
        self.top_k = config["num_experts_per_tok"]
        self.gate = nn.Linear(hidden, count, bias=False)
        self.experts = nn.ModuleList(Mlp(hidden, config["intermediate_size"]) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        probabilities = self.gate(x).softmax(-1)
        worst = probabilities.topk(self.top_k).values[:, -1:]
        weights = probabilities.where(probabilities >= worst, 0)
        if self.top_k > 1:  # as ArcticMoE.forward; the weight of a single expert stays its probability
            weights = weights / weights.sum(-1, keepdim=True)
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        mixture: Tensor = (weights[..., None] * outputs).sum(1)
        return mixture


class Attention(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        hidden = config["hidden_size"]
        self.size = hidden // self.heads
        self.theta, self.window = config["rope_theta"], config.get("sliding_window") or math.inf
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            project(x).view(len(x), -1, self.size).transpose(0, 1)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = self.turned(q), self.turned(k)
        k, v = (part.repeat_interleave(self.heads // self.kv_heads, 0) for part in (k, v))
        places = torch.arange(len(x))
        back = places[:, None] - places
        unseen = (back < 0) | (back >= self.window)
        scores = (q @ k.transpose(1, 2) / math.sqrt(self.size)).masked_fill(unseen, -math.inf)
        result: Tensor = self.o_proj((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))
        return result

    def turned(self, x: Tensor) -> Tensor:
        """Each pair (i, i + size / 2) as a complex number, times e^(i place frequency)."""
        first, second = x.chunk(2, -1)
        frequencies = self.theta ** (-torch.arange(0, self.size, 2) / self.size)
        angles = torch.arange(x.shape[1])[:, None] * frequencies
        product = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([product.real, product.imag], -1)


class Layer(nn.Module):
    def __init__(self, config: dict[str, Any], index: int) -> None:
        super().__init__()
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        sparse = (index + 1) % config["moe_layer_frequency"] == 0
        dense = {} if sparse else {"mlp": Mlp(hidden, config["intermediate_size"])}
        self.parallel = sparse and config["parallel_attn_mlp_res"]
        self.self_attn = Attention(config)
        self.block_sparse_moe = Moe(config) if sparse else nn.ModuleDict(dense)
        self.input_layernorm = nn.RMSNorm(hidden, eps)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps)
        if self.parallel:
            self.residual_layernorm = nn.RMSNorm(hidden, eps)
            self.residual_mlp = Mlp(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        attended: Tensor = x + self.self_attn(self.input_layernorm(x))
        if self.parallel:  # the experts are given the layer's input, not what attention made of it
            attended = attended + self.residual_mlp(self.residual_layernorm(attended))
            given: Tensor = self.post_attention_layernorm(x)
        else:
            given = self.post_attention_layernorm(attended)
        moe = self.block_sparse_moe
        result: Tensor = attended + (moe["mlp"] if isinstance(moe, nn.ModuleDict) else moe)(given)
        return result


class ArcticReference(Reference):
    """With as much of transformers' interface as the parity tests use: one sequence at a time, greedy."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = config
        hidden, vocabulary = config["hidden_size"], config["vocab_size"]
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(vocabulary, hidden),
                "layers": nn.ModuleList(Layer(config, i) for i in range(config["num_hidden_layers"])),
                "norm": nn.RMSNorm(hidden, config["rms_norm_eps"]),
            }
        )
        self.lm_head = nn.Linear(hidden, vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=config["initializer_range"])

    def forward(self, ids: Tensor) -> SimpleNamespace:
        x = self.model["embed_tokens"](ids[0])
        for layer in self.model["layers"]:  # type: ignore[attr-defined]
            x = layer(x)
        return SimpleNamespace(logits=self.lm_head(self.model["norm"](x))[None])
