"""Tiny configs of NLLB-MoE, and transformers' model with its router mended."""

from typing import Any

import torch
from torch import Tensor, nn

NLLB = {
    "model_type": "nllb-moe", "vocab_size": 97, "d_model": 64, "encoder_layers": 4, "decoder_layers": 4,
    "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_sparse_step": 2, "decoder_sparse_step": 2, "num_experts": 8, "max_position_embeddings": 128,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "init_std": 0.2,
}
SEQ2SEQ_CONFIGS = {
    "nllb": NLLB,
    "nllb biased router, no masking, not scaled": NLLB | {
        "router_bias": True, "moe_token_dropout": 0.0, "scale_embedding": False, "encoder_sparse_step": 1,
        "decoder_sparse_step": 4, "decoder_attention_heads": 2, "normalize_router_prob_before_dropping": True},
}


def mend(model: nn.Module, keep: float) -> None:
    """transformers 5.23 takes a mask for ids, so that it uses experts 0 and 1 alone. This is fairseq's top-2 rule.

    With room for every token in every expert, as these configs have it: the two likeliest, p1 / (p1 + p2) and
    p2 / (p1 + p2), times the share of outputs that training kept.
    """

    def published(mlp: Any) -> Any:
        def forward(hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
            flat = hidden.reshape(-1, hidden.shape[-1])
            rows = []
            for x in flat:
                p = torch.softmax(mlp.router.classifier(x), -1)
                first = int(p.argmax())
                second = int(p.masked_fill(torch.arange(len(p)) == first, -1).argmax())
                rows.append(sum(mlp.experts[f"expert_{e}"](x) * p[e] / (p[first] + p[second]) * keep
                                for e in (first, second)))
            return torch.stack(rows).view_as(hidden)

        return forward

    for module in model.modules():
        if type(module).__name__ == "NllbMoeSparseMLP":
            module.forward = published(module)


def REFERENCE(config: dict[str, Any]) -> Any:
    from transformers import NllbMoeConfig, NllbMoeForConditionalGeneration

    values = {key: value for key, value in config.items() if key != "model_type"}
    model: Any = NllbMoeForConditionalGeneration(NllbMoeConfig(**values))
    model = model.float().eval()
    mend(model, 1 - model.config.moe_token_dropout)
    return model
