"""SmallThinker in plain torch: routers that see what a layer is given, before its attention.

Written from what modeling_smallthinker.py computes, which PowerInfer published with SmallThinker-4BA0.6B-Instruct.
"""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional as F

from tests.oracles.decoders.plain import Attention, Config, Layer, Mlp, PlainReference, mixture


class Moe(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, count = config["hidden_size"], config["moe_num_primary_experts"]
        self.softmax, self.top_k = (
            config["moe_primary_router_apply_softmax"],
            config["moe_num_active_primary_experts"],
        )
        self.primary_router = nn.Linear(hidden, count, bias=False)
        names = ("gate", "up", "down")
        self.experts = nn.ModuleList(Mlp(hidden, config["moe_ffn_hidden_size"], names, F.relu) for _ in range(count))

    def forward(self, before: Tensor, x: Tensor) -> Tensor:
        best = self.primary_router(before).topk(self.top_k)
        weights = best.values.softmax(-1) if self.softmax else best.values.sigmoid()
        return mixture(self.experts, x, best.indices, weights / weights.sum(-1, keepdim=True))


class EarlyLayer(Layer):
    def forward(self, x: Tensor) -> Tensor:
        before = x
        x = x + self.self_attn(self.input_layernorm(x))
        result: Tensor = x + getattr(self, self.block)(before, self.post_attention_layernorm(x))
        return result


class SmallThinkerReference(PlainReference):
    def layer(self, index: int) -> nn.Module:
        c = self.config
        slides = c["sliding_window_layout"][index] == 1
        attention = Attention(
            c, turns=bool(c["rope_layout"][index]), window=c["sliding_window_size"] if slides else math.inf
        )
        return EarlyLayer(c, attention, "block_sparse_moe", Moe(c))
