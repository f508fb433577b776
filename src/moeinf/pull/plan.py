"""Plans a conversion: compares a checkpoint's tensors with the family's plan, and decides which bytes go where."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.pull.moves import Move, dense_move, expert_moves
from moeinf.pull.source import Shards
from moeinf.pull.tensors import Tensors
from moeinf.store.format import DENSE_FILE, BlockTensor, Header, dense_header, expert_layout, is_quantised, shard_file
from moeinf.store.quantisation import KEEP, FormatPlan, Quantisation, dense_tensors_of, expert_formats
from moeinf.types import DTYPE_BYTES, DType, ExpertLayout, ExpertPiece, Format, MoeShape, TensorPlan

ExpertNames = Mapping[str, tuple[tuple[int, ...], tuple[ExpertPiece, ...]]]


@dataclass(frozen=True, slots=True)
class Conversion:
    """What is to be written, known before the first byte of weights is read."""

    moe: MoeShape
    layout: ExpertLayout
    dtype: DType  # of most bytes of the dense tensors, before any was quantised
    quantisation: Quantisation  # what was asked for
    fallbacks: tuple[str, ...]  # one line for each reason why a format is another one
    dense_formats: Mapping[str, BlockTensor]  # the quantised tensors of the dense file
    dense_head: bytes
    dense_bytes: int  # of the dense file with its head
    moves: Mapping[str, tuple[Move, ...]]  # by source shard, in order of source_offset
    others: Mapping[str, frozenset[str]]  # by source shard: those in which scales of its weights lie

    @property
    def shard_bytes(self) -> int:
        """The size of the file of one MoE layer."""
        return self.moe.num_experts * self.layout.stride_bytes

    @property
    def total_bytes(self) -> int:
        return self.dense_bytes + self.moe.num_layers * self.shard_bytes

    def file_sizes(self) -> dict[str, int]:
        """Returns the sizes of the store's weight files by name."""
        shards = {shard_file(layer): self.shard_bytes for layer in range(self.moe.num_layers)}
        return {DENSE_FILE: self.dense_bytes} | shards


def plan_conversion(
    plan: TensorPlan,
    shards: Shards,
    headers: Mapping[str, Header],
    quantisation: Quantisation = KEEP,
    fp8_block: tuple[int, int] | None = None,
) -> Conversion:
    """headers: of each file in shards; fp8_block: rows and columns that share a scale, of a checkpoint in FP8.

    Raises CheckpointError naming the first tensor that does not fit the plan.
    """
    tensors = Tensors(shards, headers, plan, fp8_block)
    experts = _expert_names(plan, tensors)
    _check_all(plan, experts, tensors)
    formats = FormatPlan()
    parts = expert_formats(plan, quantisation.experts, _part_formats(experts, tensors), formats)
    layout = expert_layout([(part, parts[part], shape) for part, shape in plan.parts.items()])
    dtypes = {name: tensors.dtype(name) for name in plan.dense}
    dense = dense_tensors_of(plan, quantisation.dense, dtypes, formats)
    head, specs = dense_header({name: (tensor.format, tensor.shape) for name, tensor in dense.items()})
    moves: dict[str, list[Move]] = {shard: [] for shard in shards.files}
    for spec in specs:
        source = dense[spec.name].source
        moves[tensors.shard(source)].append(dense_move(tensors, source, spec))
    for name, (_, pieces) in experts.items():
        moves[tensors.shard(name)] += expert_moves(tensors, name, pieces, layout)
    return Conversion(
        plan.moe,
        layout,
        _widest_used(plan, dtypes),
        quantisation,
        formats.fallbacks,
        {spec.name: BlockTensor(spec.dtype, spec.shape) for spec in specs if is_quantised(spec.dtype)},
        head,
        len(head) + sum(spec.num_bytes for spec in specs),
        {shard: tuple(sorted(found, key=lambda move: move.source_offset)) for shard, found in moves.items()},
        {
            shard: frozenset(move.scales.shard for move in found if move.scales) - {shard}
            for shard, found in moves.items()
        },
    )


def _check_all(plan: TensorPlan, experts: ExpertNames, tensors: Tensors) -> None:
    """Checks that each tensor is wanted, in its shape, or ignored, or holds scales, and that none is missing."""
    wanted = plan.dense.keys() | experts.keys()
    scales = {tensors.scales_of(name) for name in wanted if name in tensors}
    others = [name for name in tensors.names() if name not in scales and not _ignored(plan, name)]
    for name in others:
        tensors.check_readable(name)
    for name, shape in (*plan.dense.items(), *((name, shape) for name, (shape, _) in experts.items())):
        tensors.check_shape(name, shape)
    for name in others:
        if name not in wanted:
            raise CheckpointError(f"{tensors.shard(name)}: tensor {name!r} does not belong to this architecture")


def _expert_names(plan: TensorPlan, tensors: Tensors) -> ExpertNames:
    """Returns the first layout that is complete; else the error names what the most complete one lacks."""
    for names in plan.experts:
        if all(name in tensors for name in names):
            return names
    closest = max(plan.experts, key=lambda names: sum(name in tensors for name in names) / len(names))
    missing = next(name for name in closest if name not in tensors)
    raise CheckpointError(f"the checkpoint lacks tensor {missing!r} (expert weights); fetch it again")


def _part_formats(experts: ExpertNames, tensors: Tensors) -> dict[str, Format]:
    """Returns the source's format of each part of an expert. It is one for all experts, as they share a layout."""
    first: dict[str, str] = {}  # part -> the source that decides
    for name, (_, pieces) in experts.items():
        for part in {piece.part for piece in pieces}:
            wanted = first.setdefault(part, name)
            if tensors.format(name) != tensors.format(wanted):
                raise UnsupportedModelError(
                    f"{tensors.shard(name)}: expert tensor {name!r} is {tensors.entry(name).dtype}, {wanted!r} is "
                    f"{tensors.entry(wanted).dtype}; moeinf needs that part of all experts in one dtype"
                )
    return {part: format for part, name in first.items() if (format := tensors.format(name))}


def _widest_used(plan: TensorPlan, dtypes: Mapping[str, DType]) -> DType:
    used: Counter[DType] = Counter()
    for name, shape in plan.dense.items():
        used[dtypes[name]] += math.prod(shape) * DTYPE_BYTES[dtypes[name]]
    return used.most_common(1)[0][0]


def _ignored(plan: TensorPlan, name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in plan.ignored)
