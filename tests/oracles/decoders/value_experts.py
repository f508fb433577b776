"""K2 Horizon in plain torch: norms of groups, gated heads, and values that experts make.

Written from what K2HorizonForCausalLM computes (modeling_k2_horizon.py of IFM/K2-Horizon-MoVA-36B-A4B); nothing of
moeinf is used.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.oracles.decoders.plain import Config, Layer, Mlp, PlainReference, mixture


class GroupNorm(nn.Module):
    def __init__(self, size: int, groups: int, eps: float) -> None:
        super().__init__()
        self.weight, self.groups, self.eps = nn.Parameter(torch.ones(size)), groups, eps

    def forward(self, x: Tensor) -> Tensor:
        parts = x.unflatten(-1, (self.groups, -1))
        found: Tensor = (parts / (parts.pow(2).mean(-1, keepdim=True) + self.eps).sqrt()).flatten(-2) * self.weight
        return found


class Router(nn.Linear):
    """Sigmoids; the bias is of the choice alone."""

    def __init__(self, config: Config, count: int, used: int, *, normalised: bool) -> None:
        super().__init__(config["hidden_size"], count, bias=config["moe_gate_bias"])
        self.used, self.normalised, self.scale = used, normalised, config["router_scaling_factor"]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        scores = (x @ self.weight.T).sigmoid()
        chosen = (scores if self.bias is None else scores + self.bias).topk(self.used).indices
        weights = scores.gather(-1, chosen)
        return chosen, (weights / weights.sum(-1, keepdim=True) if self.normalised else weights) * self.scale


class Moe(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, count, size = config["hidden_size"], config["num_experts"], config["moe_intermediate_size"]
        self.gate = Router(config, count, config["num_experts_per_tok"], normalised=config["norm_topk_prob"])
        self.experts = nn.ModuleList(Mlp(hidden, size) for _ in range(count))
        if config["num_shared_experts"]:
            self.shared_experts = Mlp(hidden, size * config["num_shared_experts"])

    def forward(self, x: Tensor) -> Tensor:
        found = mixture(self.experts, x, *self.gate(x))
        return found + self.shared_experts(x) if hasattr(self, "shared_experts") else found


class Attention(nn.Module):
    def __init__(self, config: Config, *, routed: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = (
            config[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim")
        )
        hidden, queries, keys = config["hidden_size"], self.heads * self.size, self.kv_heads * self.size
        self.turned_size = config["rope_head_dim"] or self.size
        self.theta, self.function = config["rope_parameters"]["rope_theta"], config["attention_gate_func"]
        self.q_proj, self.k_proj = nn.Linear(hidden, queries, bias=False), nn.Linear(hidden, keys, bias=False)
        self.o_proj = nn.Linear(queries, hidden, bias=False)
        if routed:
            count, used = config["mova_num_experts"], config["mova_num_experts_per_tok"]
            self.v_router = Router(config, count, used, normalised=used > 1)
            self.v_experts = nn.ModuleList(nn.Linear(hidden, keys, bias=False) for _ in range(count))
        else:
            self.v_proj = nn.Linear(hidden, keys, bias=False)
        if self.function:
            self.gate_proj = nn.Linear(hidden, queries, bias=False)
        if config["query_key_norm"]:
            self.q_norm = GroupNorm(queries, self.heads, config["rms_norm_eps"])
            self.k_norm = GroupNorm(keys, self.kv_heads, config["rms_norm_eps"])

    def values(self, x: Tensor) -> Tensor:
        if hasattr(self, "v_proj"):
            made: Tensor = self.v_proj(x)
            return made
        return mixture(
            nn.ModuleList(nn.Sequential(expert, nn.SiLU()) for expert in self.v_experts), x, *self.v_router(x)
        )

    def turned(self, x: Tensor) -> Tensor:
        """Of the pairs (i, i + size / 2) the first ones."""
        first, other = x.chunk(2, -1)
        frequencies = torch.zeros(self.size // 2)
        pairs = self.turned_size // 2
        frequencies[:pairs] = self.theta ** (-torch.arange(0, self.turned_size, 2) / self.turned_size)
        angles = torch.arange(x.shape[1])[:, None] * frequencies
        product = torch.complex(first, other) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([product.real, product.imag], -1)

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.q_proj(x), self.k_proj(x)
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (each.view(len(x), -1, self.size).transpose(0, 1) for each in (q, k, self.values(x)))
        q, k = self.turned(q), self.turned(k)
        k, v = (part.repeat_interleave(self.heads // self.kv_heads, 0) for part in (k, v))
        scores = q @ k.transpose(1, 2) * self.size**-0.5
        later = torch.ones(len(x), len(x)).triu(1).bool()
        mixed = (scores.masked_fill(later, -math.inf).softmax(-1) @ v).transpose(0, 1).flatten(1)
        if self.function:
            gate = self.gate_proj(x)
            mixed = mixed * (F.silu(gate) if self.function == "silu" else F.softplus(gate, beta=math.log(2)))
        result: Tensor = self.o_proj(mixed)
        return result


class HorizonReference(PlainReference):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        modules: Any = self.model
        modules["norm"] = self.norm()

    def norm(self) -> GroupNorm:
        c = self.config
        return GroupNorm(c["hidden_size"], c["layernorm_num_groups"], c["rms_norm_eps"])

    def layer(self, index: int) -> nn.Module:
        c = self.config
        sparse = c["num_experts"] > 0 and index not in c["mlp_only_layers"]
        mlp = Moe(c) if sparse else Mlp(c["hidden_size"], c["intermediate_size"])
        made = Layer(c, Attention(c, routed=sparse and c["mova_num_experts"] > 0), "mlp", mlp)
        made.input_layernorm, made.post_attention_layernorm = self.norm(), self.norm()  # type: ignore[assignment]
        return made
