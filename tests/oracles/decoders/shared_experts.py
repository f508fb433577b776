"""DeepSeek's first mixture in plain torch.

Written from what modeling_deepseek.py computes, which was published with deepseek-ai/deepseek-moe-16b-base.
"""

from __future__ import annotations

from torch import Tensor, nn

from tests.oracles.decoders.plain import Attention, Config, Layer, Mlp, PlainReference, mixture


class Moe(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, size, count = config["hidden_size"], config["moe_intermediate_size"], config["n_routed_experts"]
        self.top_k, self.normalises = config["num_experts_per_tok"], config["norm_topk_prob"]
        self.gate = nn.Linear(hidden, count, bias=False)
        self.experts = nn.ModuleList(Mlp(hidden, size) for _ in range(count))
        if config["n_shared_experts"]:
            self.shared_experts = Mlp(hidden, size * config["n_shared_experts"])

    def forward(self, x: Tensor) -> Tensor:
        best = self.gate(x).softmax(-1).topk(self.top_k)
        total = best.values.sum(-1, keepdim=True) if self.normalises and self.top_k > 1 else 1.0
        routed = mixture(self.experts, x, best.indices, best.values / total)
        return routed + self.shared_experts(x) if hasattr(self, "shared_experts") else routed


class DeepseekReference(PlainReference):
    def layer(self, index: int) -> nn.Module:
        c = self.config
        sparse = index >= c["first_k_dense_replace"] and index % c["moe_layer_freq"] == 0
        mlp = Moe(c) if sparse else Mlp(c["hidden_size"], c["intermediate_size"])
        return Layer(c, Attention(c), "mlp", mlp)
