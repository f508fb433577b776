"""A decoder in plain torch, without a cache, of which references are made for families that transformers has not.

Written from what published modeling code has in common; nothing of moeinf is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.oracles.reference import Reference

Config = dict[str, Any]
Function = Callable[[Tensor], Tensor]


class Mlp(nn.Module):
    """A gated MLP, or an expert."""

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
        function: Function = F.silu,
    ) -> None:
        super().__init__()
        self.names, self.function = names, function
        for name in names[:2]:
            setattr(self, name, nn.Linear(hidden, intermediate, bias=False))
        setattr(self, names[2], nn.Linear(intermediate, hidden, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        gate, up, down = (getattr(self, name) for name in self.names)
        result: Tensor = down(self.function(gate(x)) * up(x))
        return result


def mixture(experts: nn.ModuleList, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Every expert on every token, times its weight; chosen and weights: [tokens, experts of a token]."""
    every = torch.zeros(len(x), len(experts)).scatter_add(1, chosen, weights)
    outputs = torch.stack([expert(x) for expert in experts], 1)
    found: Tensor = (every[..., None] * outputs).sum(1)
    return found


class Attention(nn.Module):
    def __init__(
        self,
        config: Config,
        *,
        turns: bool = True,
        window: float = math.inf,
        normed: bool = False,
        scale: float | None = None,
        cap: float | None = None,
    ) -> None:
        """turns: whether queries and keys have positions; normed: norms of each head; cap: a bound of the scores."""
        super().__init__()
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        hidden = config["hidden_size"]
        self.size = config.get("head_dim") or hidden // self.heads
        self.turns, self.window, self.theta = turns, window, config["rope_theta"]
        self.scale, self.cap = scale or self.size**-0.5, cap
        self.q_proj = nn.Linear(hidden, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, hidden, bias=False)
        if normed:
            self.q_norm, self.k_norm = (nn.RMSNorm(self.size, config["rms_norm_eps"]) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (project(x).view(len(x), -1, self.size).transpose(0, 1) for project in projections)
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        if self.turns:
            q, k = self.turned(q), self.turned(k)
        k, v = (part.repeat_interleave(self.heads // self.kv_heads, 0) for part in (k, v))
        scores = q @ k.transpose(1, 2) * self.scale
        if self.cap is not None:
            scores = self.cap * torch.tanh(scores / self.cap)
        places = torch.arange(len(x))
        back = places[:, None] - places
        weights = scores.masked_fill((back < 0) | (back >= self.window), -math.inf).softmax(-1)
        result: Tensor = self.o_proj((weights @ v).transpose(0, 1).flatten(1))
        return result

    def turned(self, x: Tensor) -> Tensor:
        """Each pair (i, i + size / 2) as a complex number, times e^(i place frequency)."""
        first, other = x.chunk(2, -1)
        frequencies = self.theta ** (-torch.arange(0, self.size, 2) / self.size)
        angles = torch.arange(x.shape[1])[:, None] * frequencies
        product = torch.complex(first, other) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([product.real, product.imag], -1)


class Layer(nn.Module):
    """Attention, then a block of experts, each on the norm of what it is given; `residual` multiplies both."""

    def __init__(self, config: Config, attention: nn.Module, block: str, mlp: nn.Module, residual: float = 1.0) -> None:
        super().__init__()
        self.block, self.residual = block, residual
        self.self_attn = attention
        setattr(self, block, mlp)
        self.input_layernorm = nn.RMSNorm(config["hidden_size"], config["rms_norm_eps"])
        self.post_attention_layernorm = nn.RMSNorm(config["hidden_size"], config["rms_norm_eps"])

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.residual * self.self_attn(self.input_layernorm(x))
        result: Tensor = x + self.residual * getattr(self, self.block)(self.post_attention_layernorm(x))
        return result


class PlainReference(Reference):
    """With as much of transformers' interface as the parity tests use: one sequence at a time, greedy."""

    embedding_name = "embed_tokens"

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        hidden, vocabulary = config["hidden_size"], config["vocab_size"]
        layers = nn.ModuleList(self.layer(i) for i in range(config["num_hidden_layers"]))
        norm = nn.RMSNorm(hidden, config["rms_norm_eps"])
        embedding = nn.Embedding(vocabulary, hidden)
        self.model = nn.ModuleDict({self.embedding_name: embedding, "layers": layers, "norm": norm})
        if not config["tie_word_embeddings"]:
            self.lm_head = nn.Linear(hidden, vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=config["initializer_range"])

    def layer(self, index: int) -> nn.Module:
        raise NotImplementedError

    def embedded(self, x: Tensor) -> Tensor:
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Of what the last norm gives."""
        embedding: Any = self.model[self.embedding_name]
        head = embedding.weight if self.config["tie_word_embeddings"] else self.lm_head.weight
        found: Tensor = x @ head.T
        return found

    def forward(self, ids: Tensor) -> SimpleNamespace:
        x = self.embedded(self.model[self.embedding_name](ids[0]))
        for layer in self.model["layers"]:  # type: ignore[attr-defined]
            x = layer(x)
        return SimpleNamespace(logits=self.logits(self.model["norm"](x))[None])
