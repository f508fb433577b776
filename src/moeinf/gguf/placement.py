"""Where in GGUF files the tensors of a plan lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moeinf.gguf.header import GgufTensor
from moeinf.gguf.undo import Undo
from moeinf.types import Format, format_bytes

_SCALED: Format = "nvfp4"  # whose blocks alone are not the weights


@dataclass(frozen=True, slots=True)
class DenseSource:
    """Where a dense tensor comes from: mostly one tensor as it lies, else several and what `undone` makes of them."""

    tensors: tuple[GgufTensor, ...]
    shape: tuple[int, ...]  # that the plan wants, and `undo` ends in
    undo: Undo = ()
    scale: GgufTensor | None = None  # one f32 number that multiplies the whole tensor

    @property
    def own_scale(self) -> GgufTensor | None:
        """The scale where it belongs to the weights: these are the products with it."""
        return self.scale if self.tensors[0].format == _SCALED else None

    def moved_to(self, tensor: GgufTensor) -> DenseSource:
        """As the plan has it in another tensor, with that scale in it."""
        return DenseSource((tensor,), self.shape, (), None if self.own_scale else self.scale)


@dataclass(frozen=True, slots=True)
class ExpertSource:
    """Where one part of all experts of a layer lies: expert e begins e * stride_bytes behind the first."""

    tensor: GgufTensor
    format: Format
    shape: tuple[int, ...]  # of the part of one expert
    offset_bytes: int  # of expert 0, from the start of the file `tensor.file`
    num_bytes: int  # of one expert
    stride_bytes: int  # from one expert to the next
    scale: GgufTensor | None = None  # an f32 number for each expert, which multiplies all of the part
    others: tuple[GgufTensor, ...] = ()  # of the experts behind the first, where each has a tensor of its own

    @property
    def own_scale(self) -> GgufTensor | None:
        """The scales where they belong to the weights."""
        return self.scale if self.format == _SCALED else None

    def moved_to(self, tensor: GgufTensor) -> ExpertSource:
        """As they lie in a tensor [experts, ..] one behind the other, with those scales in them."""
        num_bytes = format_bytes(tensor.format, self.shape)
        scale = None if self.own_scale else self.scale
        return ExpertSource(tensor, tensor.format, self.shape, tensor.offset_bytes, num_bytes, num_bytes, scale)


@dataclass(frozen=True, slots=True)
class Placement:
    """Of every tensor of a plan."""

    dense: Mapping[str, DenseSource]  # by the plan's names
    experts: tuple[Mapping[str, ExpertSource], ...]  # of each MoE layer, by the plan's parts

    def tensors(self) -> set[str]:
        """The names of all that it is made of."""
        found = set[str]()
        for source in self.dense.values():
            found.update(tensor.name for tensor in (*source.tensors, source.scale) if tensor)
        for layer in self.experts:
            found.update(
                each.name for part in layer.values() for each in (part.tensor, part.scale, *part.others) if each
            )
        return found

    def with_merged(self, merged: Mapping[str, GgufTensor]) -> Placement:
        """With tensors of another file, which lie there as the plan has them, in place of those of the same names.

        A part of all experts of a layer is called as `stack_name` says. Scales that are the weights' own are in them.
        """
        dense = {
            name: source.moved_to(merged[name]) if name in merged else source for name, source in self.dense.items()
        }
        experts = tuple(
            {
                part: source.moved_to(merged[name]) if (name := stack_name(layer, part)) in merged else source
                for part, source in parts.items()
            }
            for layer, parts in enumerate(self.experts)
        )
        return Placement(dense, experts)


def stack_name(layer: int, part: str) -> str:
    """What a part of all experts of a MoE layer is called in a file of its own."""
    return f"experts/{layer}/{part}"
