"""Grok-1 and Grok-2 in plain torch, without a cache, as transformers has neither.

Written from xAI's model.py of Grok-1 and from sglang's grok.py; nothing of moeinf is used.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.oracles.reference import Reference


def linear(into: int, out: int) -> nn.Linear:
    return nn.Linear(into, out, bias=False)


def capped(x: Tensor, most: float | None) -> Tensor:
    return most * torch.tanh(x / most) if most else x


class Mlp(nn.Module):
    def __init__(self, hidden: int, size: int, names: tuple[str, str, str]) -> None:
        super().__init__()
        self.names = names
        for name, (into, out) in zip(names, ((hidden, size), (hidden, size), (size, hidden)), strict=True):
            self.add_module(name, linear(into, out))

    def forward(self, x: Tensor) -> Tensor:
        gate, up, down = (self.get_submodule(name) for name in self.names)
        result: Tensor = down(F.gelu(gate(x), approximate="tanh") * up(x))
        return result


class Moe(nn.Module):
    """Every expert on every token, times its share of the softmax, which is 0 for all but the best of the token."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden, count = config["hidden_size"], config["num_local_experts"]
        self.top_k, self.cap = config["num_experts_per_tok"], config.get("router_logit_softcapping")
        self.gate = linear(hidden, count)
        size = config.get("moe_intermediate_size") or config["intermediate_size"]
        self.experts = nn.ModuleList(Mlp(hidden, size, ("w1", "w3", "w2")) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        shares = capped(self.gate(x), self.cap).softmax(-1)
        best = shares.topk(self.top_k)
        weights = torch.zeros_like(shares).scatter(1, best.indices, best.values)
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        result: Tensor = (weights[..., None] * outputs).sum(1)
        return result


class Attention(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = (
            config[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim")
        )
        hidden = config["hidden_size"]
        self.scale = config.get("attn_output_multiplier") or self.size**-0.5
        self.cap = config.get("attn_logit_softcapping") or config["max_attn_value"]
        self.turned_size = self.size // 2 if config.get("rope_rotate_half_dims") else self.size
        self.theta = config["rope_theta"]
        self.q_proj = linear(hidden, self.heads * self.size)
        self.k_proj, self.v_proj = (linear(hidden, self.kv_heads * self.size) for _ in range(2))
        self.o_proj = linear(self.heads * self.size, hidden)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            project(x).view(len(x), -1, self.size).transpose(0, 1)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = self.turned(q), self.turned(k)
        k, v = (part.repeat_interleave(self.heads // self.kv_heads, 0) for part in (k, v))
        scores = capped(q @ k.transpose(1, 2) * self.scale, self.cap)
        places = torch.arange(len(x))
        scores = scores.masked_fill(places[:, None] < places, -math.inf)
        result: Tensor = self.o_proj((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))
        return result

    def turned(self, x: Tensor) -> Tensor:
        """Each pair (i, i + half) of the first numbers as a complex number, times e^(i place frequency)."""
        turning, rest = x[..., : self.turned_size], x[..., self.turned_size :]
        first, second = turning.chunk(2, -1)
        frequencies = self.theta ** (-torch.arange(0, self.turned_size, 2) / self.turned_size)
        angles = torch.arange(x.shape[1])[:, None] * frequencies
        product = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([product.real, product.imag, rest], -1)


class Layer(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.self_attn, self.block_sparse_moe = Attention(config), Moe(config)
        self.mlp: Mlp | None = None
        if config.get("residual_moe"):
            self.mlp = Mlp(hidden, config["intermediate_size"], ("gate_proj", "up_proj", "down_proj"))
        for name in ("pre_attn_norm", "post_attn_norm", "pre_moe_norm", "post_moe_norm"):
            self.add_module(name, nn.RMSNorm(hidden, eps))

    def forward(self, x: Tensor) -> Tensor:
        norm = self.get_submodule
        x = x + norm("post_attn_norm")(self.self_attn(norm("pre_attn_norm")(x)))
        hidden = norm("pre_moe_norm")(x)
        found = self.block_sparse_moe(hidden)
        if self.mlp is not None:
            found = (self.mlp(hidden) + found) / math.sqrt(2)
        result: Tensor = x + norm("post_moe_norm")(found)
        return result


class GrokReference(Reference):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = config
        hidden, vocabulary = config["hidden_size"], config["vocab_size"]
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(vocabulary, hidden),
                "layers": nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"])),
                "norm": nn.RMSNorm(hidden, config["rms_norm_eps"]),
            }
        )
        if not config.get("tie_word_embeddings"):
            self.lm_head = linear(hidden, vocabulary)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=config["initializer_range"])

    def forward(self, ids: Tensor) -> SimpleNamespace:
        c, model = self.config, self.model
        embedding: Any = model["embed_tokens"]
        x = embedding(ids[0]) * c["embedding_multiplier_scale"]
        for layer in model["layers"]:  # type: ignore[attr-defined]
            x = layer(x)
        head = embedding.weight if c.get("tie_word_embeddings") else self.lm_head.weight
        logits = model["norm"](x) @ head.T * c["output_multiplier_scale"]
        return SimpleNamespace(logits=capped(logits, c.get("final_logit_softcapping"))[None])
