"""Tensor plans and sizes of models whose experts are gated MLPs (gate, up, down)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from moeinf.models.layers.decoder import DecoderConfig, head, ignored_tensors, linear_names
from moeinf.models.layers.protocol import Shapes, attention_work, block_work
from moeinf.types import DTYPE_BYTES, DType, ExpertPiece, ModelInfo, MoeShape, TensorPlan

PARTS = ("gate", "up", "down")


def gated_experts_plan(
    config: DecoderConfig,
    moe: MoeShape,
    dense: Shapes,
    block_names: Sequence[str],
    intermediate: int,
    part_names: tuple[str, str, str] | None,
    fused_names: tuple[str, str] = ("experts.gate_up_proj", "experts.down_proj"),
) -> TensorPlan:
    """Plan for both layouts in which transformers writes such experts.

    block_names: prefix of the MoE block of each MoE layer, such as `model.layers.3.mlp.`;
    part_names: what this family calls gate, up and down where each expert has tensors of its own, if it ever has;
    fused_names: of those of all experts together.
    """
    hidden = config.attention.hidden_size
    shapes = {"gate": (intermediate, hidden), "up": (intermediate, hidden), "down": (hidden, intermediate)}
    separate = {
        f"{block}experts.{expert}.{name}.weight": (shapes[part], (ExpertPiece(layer, expert, part, 0),))
        for layer, block in enumerate(block_names)
        for expert in range(moe.num_experts)
        for part, name in zip(PARTS, part_names or (), strict=part_names is not None)
    }
    fused = {}
    for layer, block in enumerate(block_names):
        size = intermediate * hidden
        fused[block + fused_names[0]] = (
            (moe.num_experts, 2 * intermediate, hidden),
            tuple(
                ExpertPiece(layer, expert, part, (2 * expert + half) * size)
                for expert in range(moe.num_experts)
                for half, part in enumerate(("gate", "up"))
            ),
        )
        fused[block + fused_names[1]] = (
            (moe.num_experts, hidden, intermediate),
            tuple(ExpertPiece(layer, expert, "down", expert * size) for expert in range(moe.num_experts)),
        )
    layouts = (fused,) if part_names is None else (separate, fused)
    return TensorPlan(
        moe,
        shapes,
        dense,
        layouts,
        ignored_tensors(config),
        linear_names(dense),
        frozenset({config.embedding}),
        head(config),
        work=attention_work(config.attention) | block_work(dense),
    )


def plan_info(architecture: str, config: DecoderConfig, plan: TensorPlan, dtype: DType) -> ModelInfo:
    """Sizes of a model without shared experts, from its plan."""
    expert = sum(math.prod(shape) for shape in plan.parts.values())
    dense = sum(math.prod(shape) for shape in plan.dense.values())
    a = config.attention
    return ModelInfo(
        architecture=architecture,
        num_params=dense + expert * plan.moe.total_experts,
        active_params=dense + expert * plan.moe.num_layers * plan.moe.top_k,
        num_shared_experts=0,
        context_length=config.context_length,
        hidden_size=a.hidden_size,
        num_layers=config.num_layers,
        vocab_size=config.vocab_size,
        kv_bytes_per_token=2 * config.num_layers * a.num_kv_heads * a.head_dim * DTYPE_BYTES[dtype],
        dtype=dtype,
    )
