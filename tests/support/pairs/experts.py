"""Experts of a checkpoint that all lie in memory, for models that are compared with the reference."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch
from torch import Tensor

from moeinf._native import ExpertKernel, Kernels
from moeinf.models.layers.weights import StoredTensor
from moeinf.types import ExpertPiece, TensorPlan
from tests.oracles.resident_experts import ResidentExperts


def stored(tensor: Tensor) -> StoredTensor:
    return StoredTensor(tensor.float().contiguous().view(-1).view(torch.uint8).numpy(), "f32", tuple(tensor.shape))


def part_of(piece: ExpertPiece, source: Tensor, shape: tuple[int, ...]) -> Tensor:
    filled, part = piece.filled or shape, torch.zeros(shape)
    begin = piece.at or (0,) * len(filled)
    part[tuple(slice(first, first + count) for first, count in zip(begin, filled, strict=True))] = (
        piece.times * source.contiguous().as_strided(filled, piece.strides_of(filled), piece.start_element)
    )
    return part


def read_by(plan: TensorPlan, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those that are not ignored, as they carry nothing, and have numbers."""
    return {
        name: tensor
        for name, tensor in tensors.items()
        if name in plan.dense
        or (tensor.numel() and not any(re.fullmatch(pattern, name) for pattern in (*plan.ignored, *plan.follows)))
    }


def owning(plan: TensorPlan, tensors: dict[str, Tensor]) -> tuple[TensorPlan, dict[str, Tensor]]:
    """The plan of these tensors, without those that are copies."""
    own = [
        name
        for name, source in plan.copies.items()
        if name in tensors and not torch.equal(tensors[name], tensors[source])
    ]
    return plan.owning(own), {name: each for name, each in tensors.items() if name in own or name not in plan.copies}


Layout = Mapping[str, tuple[tuple[int, ...], tuple[ExpertPiece, ...]]]


def layout_in(plan: TensorPlan, tensors: Mapping[str, Tensor]) -> Layout:
    """The layout, of those of the plan, in which the experts are there."""
    for layout in plan.experts:
        if all(name in tensors and tuple(tensors[name].shape) == shape for name, (shape, _) in layout.items()):
            return layout
    raise AssertionError("the experts are there in no layout of the plan")


def parts_of_experts(plan: TensorPlan, tensors: Mapping[str, Tensor]) -> dict[tuple[int, int, str], Tensor]:
    """The parts of each expert, by its layer and number and by their names."""
    found: dict[tuple[int, int, str], Tensor] = {}
    for name, (_, pieces) in layout_in(plan, tensors).items():
        for piece in pieces:
            key, share = (piece.layer, piece.expert, piece.part), part_of(piece, tensors[name], plan.parts[piece.part])
            found[key] = found[key] + share if piece.at is not None and key in found else share
    return found


def resident_experts(plan: TensorPlan, tensors: dict[str, Tensor], kernels: Kernels) -> ResidentExperts:
    """Every expert's parts one behind the other, and the experts one behind the other."""
    found = parts_of_experts(plan, tensors)
    memory = torch.cat(
        [
            found[layer, expert, part].flatten()
            for layer in range(plan.moe.num_layers)
            for expert in range(plan.moe.num_experts)
            for part in plan.parts
        ]
    )
    parts, size = {}, 0
    for part_name, part in plan.parts.items():
        parts[part_name] = ("f32", part[0], math.prod(part[1:]), size)
        size += math.prod(part) * 4
    kernel = ExpertKernel(kernels, memory.view(torch.uint8).numpy(), parts, plan.forms)
    return ResidentExperts(kernel, lambda layer, expert: (layer * plan.moe.num_experts + expert) * size)
