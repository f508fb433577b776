"""Layouts of experts that no checkpoint has, by which adapters and copies of GGUF tensors are told."""

from __future__ import annotations

import math
from dataclasses import replace

from moeinf.gguf.placement import stack_name
from moeinf.types import ExpertPiece, TensorPlan


def expert_module(layer: int, expert: int, part: str) -> str:
    """The module that has one part of one expert, whatever the checkpoint calls it."""
    return f"expert/{layer}/{expert}/{part}"


def with_own_layouts(plan: TensorPlan) -> TensorPlan:
    """With two further layouts: one matrix an expert (`expert_module`), and one tensor for all (`stack_name`)."""
    alone, stacks = {}, {}
    for layer in range(plan.moe.num_layers):
        experts = range(plan.moe.experts_of(layer))
        for part, shape in plan.parts.items():
            size = math.prod(shape)
            pieces = tuple(ExpertPiece(layer, expert, part, expert * size) for expert in experts)
            stacks[stack_name(layer, part)] = ((len(experts), *shape), pieces)
            for expert in experts:
                name = f"{expert_module(layer, expert, part)}.weight"
                alone[name] = (shape, (ExpertPiece(layer, expert, part, 0),))
    return replace(plan, experts=(*plan.experts, alone, stacks))
