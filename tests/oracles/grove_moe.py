"""GroveMoE in plain torch: Qwen3-MoE of transformers, with the experts that GroveMoE has in the place of its own.

Written from GroveMoeSparseMoeBlock of the code published with it (modeling_qwen3_moe.py of inclusionAI/GroveMoE);
nothing of moeinf is used.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.oracles.reference import Reference


class Mlp(nn.Module):
    def __init__(self, hidden: int, size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, size, bias=False)
        self.up_proj = nn.Linear(hidden, size, bias=False)
        self.down_proj = nn.Linear(size, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


class Block(nn.Module):
    """Every expert on every token, times its weight, which is 0 for all but the best of the token."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden, count = config["hidden_size"], config["num_experts"]
        self.top_k, self.group = config["num_experts_per_tok"], config["num_experts_per_group"]
        self.times = config["expert_group_scale"]
        self.gate = nn.Linear(hidden, count, bias=False)
        self.experts = nn.ModuleList(Mlp(hidden, config["moe_intermediate_size"]) for _ in range(count))
        size = config["parallel_expert_intermediate_size"]
        self.chunk_experts = nn.ModuleList(Mlp(hidden, size) for _ in range(count // self.group))

    def forward(self, hidden: Tensor) -> Tensor:
        x = hidden.flatten(0, -2)
        logits = self.gate(x)
        chosen = logits.sigmoid().topk(self.top_k).indices
        weights = torch.zeros_like(logits).scatter(1, chosen, logits.softmax(-1).gather(1, chosen))
        weights = weights / weights.sum(-1, keepdim=True)
        large = torch.stack([expert(x) for expert in self.experts], 1)
        small = torch.stack([self.chunk_experts[e // self.group](x) for e in range(len(self.experts))], 1)
        mixed = (weights[..., None] * large).sum(1) + self.times * (weights[..., None] * small).sum(1)
        result: Tensor = mixed.view(hidden.shape)
        return result


class GroveMoeReference(Reference):
    def __init__(self, config: dict[str, Any], whole: Any) -> None:
        """whole: a Qwen3MoeForCausalLM of the config."""
        super().__init__()
        self.config = config
        self.model, self.lm_head = whole.model, whole.lm_head
        for layer in self.model.layers:
            if hasattr(layer.mlp, "experts"):
                layer.mlp = Block(config)
                for parameter in layer.mlp.parameters():
                    nn.init.normal_(parameter, std=config["initializer_range"])

    def forward(self, ids: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.lm_head(self.model(ids).last_hidden_state))
