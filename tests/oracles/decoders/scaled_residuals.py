"""MiniCPM in plain torch: embeddings, what layers add, and logits are scaled.

Written from what vLLM's minicpm.py computes of openbmb/MiniCPM-MoE-8x2B, names of experts included.
"""

from __future__ import annotations

from torch import Tensor, nn

from tests.oracles.decoders.plain import Attention, Config, Layer, Mlp, PlainReference, mixture


class Moe(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, count = config["hidden_size"], config["num_experts"]
        self.top_k = config["num_experts_per_tok"]
        self.gate = nn.Linear(hidden, count, bias=False)
        names = ("w1", "w3", "w2")
        self.experts = nn.ModuleList(Mlp(hidden, config["intermediate_size"], names) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        best = self.gate(x).softmax(-1).topk(self.top_k)
        return mixture(self.experts, x, best.indices, best.values / best.values.sum(-1, keepdim=True))


class MiniCpmReference(PlainReference):
    def layer(self, index: int) -> nn.Module:
        c = self.config
        mlp = Moe(c) if c.get("num_experts") else Mlp(c["hidden_size"], c["intermediate_size"])
        return Layer(c, Attention(c), "mlp", mlp, c["scale_depth"] / c["num_hidden_layers"] ** 0.5)

    def embedded(self, x: Tensor) -> Tensor:
        scale: float = self.config["scale_emb"]
        return x * scale

    def logits(self, x: Tensor) -> Tensor:
        return super().logits(x / (self.config["hidden_size"] / self.config["dim_model_base"]))
