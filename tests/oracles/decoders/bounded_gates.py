"""Maple in plain torch: layers with a window turn half of each head, the others nothing; experts are bounded.

Written from what modeling_maple.py computes, which was published with deepgrove/maple-preview.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.oracles.decoders.plain import Attention, Config, Layer, Mlp, PlainReference, mixture


class BoundedMlp(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        gate, up, down = (getattr(self, name) for name in self.names)
        result: Tensor = down(F.silu(gate(x).clamp(max=7.0)) * up(x).clamp(-7.0, 7.0))
        return result


class Moe(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, count = config["hidden_size"], config["num_experts"]
        self.top_k = config["num_experts_per_tok"]
        self.gate = nn.Linear(hidden, count, bias=False)
        self.experts = nn.ModuleList(BoundedMlp(hidden, config["moe_intermediate_size"]) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        best = self.gate(x).softmax(-1).topk(self.top_k)
        return mixture(self.experts, x, best.indices, best.values / (best.values.sum(-1, keepdim=True) + 1e-20))


class PartlyTurned(Attention):
    share = 1.0  # of each head

    def turned(self, x: Tensor) -> Tensor:
        whole, self.size = self.size, int(self.size * self.share)
        turned = super().turned(x[..., : self.size])
        rest, self.size = x[..., self.size :], whole
        return torch.cat([turned, rest], -1)


class MapleReference(PlainReference):
    embedding_name = "word_embeddings"

    def layer(self, index: int) -> nn.Module:
        c = self.config
        slides = c["layer_types"][index] == "sliding_attention"
        window = c["sliding_window"] if slides else math.inf
        attention = PartlyTurned(c, turns=slides, window=window, normed=True)
        attention.share = c["partial_rotary_factor"]
        return Layer(c, attention, "mlp", Moe(c))
