"""Where the tensors of a family's plan lie in a GGUF file, and what was done to them on the way there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moeinf.gguf.header import Gguf, GgufTensor
from moeinf.gguf.undo import Undo
from moeinf.types import Format, TensorPlan


@dataclass(frozen=True, slots=True)
class DenseSource:
    """Where a dense tensor comes from: mostly one tensor as it lies, else several and what `undone` makes of them."""

    tensors: tuple[GgufTensor, ...]
    shape: tuple[int, ...]  # that the plan wants, and `undo` ends in
    undo: Undo = ()
    scale: GgufTensor | None = None  # NVFP4: one f32 number that multiplies the whole tensor


@dataclass(frozen=True, slots=True)
class ExpertSource:
    """Where one part of all experts of a layer lies: expert e begins e * stride_bytes behind the first."""

    tensor: GgufTensor
    format: Format
    shape: tuple[int, ...]  # of the part of one expert
    offset_bytes: int  # of expert 0, from the start of the file `tensor.file`
    num_bytes: int  # of one expert
    stride_bytes: int  # from one expert to the next
    scale: GgufTensor | None = None  # NVFP4: an f32 number for each expert, which multiplies all of the part


@dataclass(frozen=True, slots=True)
class Placement:
    """Of every tensor of a plan."""

    dense: Mapping[str, DenseSource]  # by the plan's names
    experts: tuple[Mapping[str, ExpertSource], ...]  # of each MoE layer, by the plan's parts


def places_of(gguf: Gguf, plan: TensorPlan) -> Placement:
    """Raises CheckpointError for a tensor that is missing, or not of the shape that the config says."""
    raise NotImplementedError
