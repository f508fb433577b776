"""Tiny configs of NLLB-MoE, and transformers' model with its router mended."""

import math
from typing import Any

import torch
from torch import Tensor, nn

NLLB = {
    "model_type": "nllb-moe",
    "vocab_size": 97,
    "d_model": 64,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_sparse_step": 2,
    "decoder_sparse_step": 2,
    "num_experts": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "init_std": 0.2,
}
SEQ2SEQ_CONFIGS = {
    "nllb": NLLB,
    "nllb biased router, no masking, not scaled": NLLB
    | {
        "router_bias": True,
        "moe_token_dropout": 0.0,
        "scale_embedding": False,
        "encoder_sparse_step": 1,
        "decoder_sparse_step": 4,
        "decoder_attention_heads": 2,
        "normalize_router_prob_before_dropping": True,
    },
    "nllb overflowing": NLLB | {"moe_eval_capacity_token_fraction": 0.2, "encoder_sparse_step": 4},
    "nllb overflowing, likeliest first, normalised before, narrower experts of answers": NLLB
    | {
        "batch_prioritized_routing": True,
        "activation_function": "relu2",
        "moe_eval_capacity_token_fraction": 0.1,
        "encoder_sparse_step": 4,
        "decoder_ffn_dim": 64,
        "normalize_router_prob_before_dropping": True,
    },
}


def mend(model: nn.Module, keep: float, share: float) -> None:
    """transformers 5.23 takes a mask for ids, so that it uses experts 0 and 1 alone. This is fairseq's top-2 rule.

    The two likeliest, p1 / (p1 + p2) and p2 / (p1 + p2), times the share of outputs that training kept. An expert has
    room for a share of the source's tokens (an answer's are decoded one by one, and find room): for those that it is
    the likeliest of, then for those that it is the second of, in their order or by their probability. Who is left out
    counts in the sum below the line, or not.
    """

    def published(mlp: Any, share: float) -> Any:
        def forward(hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
            flat = hidden.reshape(-1, hidden.shape[-1])
            chosen = torch.softmax(mlp.router.classifier(flat), -1)
            room = dict.fromkeys(range(chosen.shape[1]), math.ceil(share * len(flat)))
            taken: list[list[int]] = [[] for _ in flat]
            order = (
                chosen.amax(1).argsort(descending=True) if mlp.router.batch_prioritized_routing else range(len(flat))
            )
            for rank in range(2):
                for token, p in ((int(token), chosen[int(token)]) for token in order):
                    expert = int(p.topk(2).indices[rank])
                    room[expert] -= 1
                    taken[token] += [expert] if room[expert] >= 0 else []
            rows = []
            for x, p, experts in zip(flat, chosen, taken, strict=True):
                counted = p.topk(2).values if mlp.router.normalize_router_prob_before_dropping else p[experts]
                rows.append(
                    torch.zeros_like(x)
                    + sum(mlp.experts[f"expert_{e}"](x) * p[e] / counted.sum() * keep for e in experts)
                )
            return torch.stack(rows).view_as(hidden)

        return forward

    for name, module in model.named_modules():
        if type(module).__name__ == "NllbMoeSparseMLP":
            module.forward = published(module, share if ".encoder." in name else 1.0)


def REFERENCE(config: dict[str, Any]) -> Any:
    from transformers import NllbMoeConfig, NllbMoeForConditionalGeneration

    values = {key: value for key, value in config.items() if key != "model_type"}
    model: Any = NllbMoeForConditionalGeneration(NllbMoeConfig(**values))
    model = model.float().eval()
    mend(model, 1 - model.config.moe_token_dropout, model.config.moe_eval_capacity_token_fraction)
    return model
