"""Holds a checkpoint's tensors against an architecture's plan: every fault by name, then which bytes go where."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.store.format import (
    DENSE_FILE,
    STORE_DTYPES,
    BlockTensor,
    Header,
    TensorEntry,
    dense_header,
    expert_layout,
    is_quantised,
    shard_file,
)
from moeinf.store.quantisation import KEEP, FormatPlan, Quantisation, dense_tensors_of, expert_formats
from moeinf.store.recast import Recast
from moeinf.store.source import INDEX_FILE, Shards
from moeinf.types import DTYPE_BYTES, DType, ExpertLayout, ExpertPiece, Format, MoeShape, TensorPlan

DENSE = -1  # the target of a copy into the dense file; others are numbers of MoE layers
ExpertNames = Mapping[str, tuple[tuple[int, ...], tuple[ExpertPiece, ...]]]


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes of a source shard that belong into one file of the store, as they are or recast."""

    source_offset: int
    num_bytes: int
    target: int  # DENSE or a MoE layer
    target_offset: int
    recast: Recast | None = None

    @property
    def unit_bytes(self) -> int:
        """Source bytes that cannot be cut apart."""
        return self.recast.unit_bytes if self.recast else 1

    def part(self, start: int, num_bytes: int) -> Copy:
        """Of the source bytes from `start`; both numbers are multiples of unit_bytes."""
        moved = self.recast.stored_bytes(start) if self.recast else start
        return Copy(self.source_offset + start, num_bytes, self.target, self.target_offset + moved, self.recast)


@dataclass(frozen=True, slots=True)
class Conversion:
    """All that is to be written, known before the first byte of weights is read."""

    moe: MoeShape
    layout: ExpertLayout
    dtype: DType  # of most bytes of the dense tensors, before any was quantised
    quantisation: Quantisation  # what was asked for
    fallbacks: tuple[str, ...]  # one line for each reason why a format is another one
    dense_formats: Mapping[str, BlockTensor]  # the quantised tensors of the dense file
    dense_head: bytes
    dense_bytes: int  # of the dense file with its head
    copies: Mapping[str, tuple[Copy, ...]]  # by source shard, in order of source_offset

    @property
    def shard_bytes(self) -> int:
        """Size of the file of one MoE layer."""
        return self.moe.num_experts * self.layout.stride_bytes

    @property
    def total_bytes(self) -> int:
        return self.dense_bytes + self.moe.num_layers * self.shard_bytes

    def file_sizes(self) -> dict[str, int]:
        """The weight files of the store by name."""
        shards = {shard_file(layer): self.shard_bytes for layer in range(self.moe.num_layers)}
        return {DENSE_FILE: self.dense_bytes} | shards


def plan_conversion(plan: TensorPlan, shards: Shards, headers: Mapping[str, Header],
                    quantisation: Quantisation = KEEP) -> Conversion:
    """headers: of each file in shards. Raises CheckpointError naming the first tensor that does not fit the plan."""
    tensors = _tensors_by_name(shards, headers)
    experts = _expert_names(plan, tensors)
    _check_all(plan, experts, tensors)
    expert_dtype = _expert_dtype(experts, tensors)
    formats = FormatPlan()
    parts = expert_formats(plan, quantisation.experts, expert_dtype, formats)
    layout = expert_layout([(part, parts[part], shape) for part, shape in plan.parts.items()])
    dtypes = {name: STORE_DTYPES[tensors[name][1].dtype] for name in plan.dense}
    dense = dense_tensors_of(plan, quantisation.dense, dtypes, formats)
    head, specs = dense_header({name: (tensor.format, tensor.shape) for name, tensor in dense.items()})
    copies: dict[str, list[Copy]] = {shard: [] for shard in shards.files}
    for spec in specs:
        shard, entry = tensors[dense[spec.name].source]
        copies[shard].append(Copy(entry.offset_bytes, entry.num_bytes, DENSE, spec.offset_bytes,
                                  _recast(entry, spec.dtype)))
    for name, (_, pieces) in experts.items():
        shard, entry = tensors[name]
        copies[shard] += _expert_copies(entry, pieces, layout)
    return Conversion(
        plan.moe, layout, _widest_used(plan, dtypes), quantisation, formats.fallbacks,
        {spec.name: BlockTensor(spec.dtype, spec.shape) for spec in specs if is_quantised(spec.dtype)},
        head, len(head) + sum(spec.num_bytes for spec in specs),
        {shard: tuple(sorted(found, key=lambda copy: copy.source_offset)) for shard, found in copies.items()},
    )


def _check_all(plan: TensorPlan, experts: ExpertNames, tensors: Mapping[str, tuple[str, TensorEntry]]) -> None:
    """Every tensor is one that the plan wants, in its shape, or ignores; and none is missing."""
    for name, (shard, entry) in tensors.items():
        if entry.dtype not in STORE_DTYPES and not _ignored(plan, name):
            raise UnsupportedModelError(f"{shard}: tensor {name!r} has dtype {entry.dtype}; moeinf converts bf16, f16 "
                                        "and f32 checkpoints, so pull the unquantised original")
    for name, shape in (*plan.dense.items(), *((name, shape) for name, (shape, _) in experts.items())):
        _check_tensor(name, shape, tensors)
    for name, (shard, _) in tensors.items():
        if name not in plan.dense and name not in experts and not _ignored(plan, name):
            raise CheckpointError(f"{shard}: tensor {name!r} does not belong to this architecture")


def _tensors_by_name(shards: Shards, headers: Mapping[str, Header]) -> dict[str, tuple[str, TensorEntry]]:
    tensors: dict[str, tuple[str, TensorEntry]] = {}
    for shard in shards.files:
        for name, entry in headers[shard].items():
            if name in tensors:
                raise CheckpointError(f"{shard}: tensor {name!r} is also in {tensors[name][0]}")
            tensors[name] = shard, entry
    for name, shard in (shards.weight_map or {}).items():
        if name not in tensors or tensors[name][0] != shard:
            raise CheckpointError(f"{shard} lacks tensor {name!r}, which {INDEX_FILE} puts there")
    return tensors


def _expert_names(plan: TensorPlan, tensors: Mapping[str, object]) -> ExpertNames:
    """The first layout that is there in full; where none is, the error names what the most complete one lacks."""
    for names in plan.experts:
        if all(name in tensors for name in names):
            return names
    closest = max(plan.experts, key=lambda names: sum(name in tensors for name in names) / len(names))
    missing = next(name for name in closest if name not in tensors)
    raise CheckpointError(f"the checkpoint lacks tensor {missing!r} (expert weights); fetch it again")


def _check_tensor(name: str, shape: tuple[int, ...], tensors: Mapping[str, tuple[str, TensorEntry]]) -> None:
    if name not in tensors:
        raise CheckpointError(f"the checkpoint lacks tensor {name!r}; fetch it again")
    shard, entry = tensors[name]
    if entry.shape != shape:
        raise CheckpointError(f"{shard}: tensor {name!r} has shape {list(entry.shape)}, config.json implies "
                              f"{list(shape)}")


def _expert_dtype(experts: ExpertNames, tensors: Mapping[str, tuple[str, TensorEntry]]) -> DType:
    """One for all experts of a model, as they share one layout."""
    first = next(iter(experts))
    wanted = tensors[first][1].dtype
    for name in experts:
        shard, entry = tensors[name]
        if entry.dtype != wanted:
            raise UnsupportedModelError(f"{shard}: expert tensor {name!r} is {entry.dtype}, {first!r} is {wanted}; "
                                        "moeinf needs all experts in one dtype")
    return STORE_DTYPES[wanted]


def _expert_copies(entry: TensorEntry, pieces: tuple[ExpertPiece, ...], layout: ExpertLayout) -> Iterator[Copy]:
    parts = {spec.name: spec for spec in layout.tensors}
    width = DTYPE_BYTES[STORE_DTYPES[entry.dtype]]
    for piece in pieces:
        part = parts[piece.part]
        start, num_bytes = piece.start_element * width, math.prod(part.shape) * width
        assert start + num_bytes <= entry.num_bytes, "the plan cuts beyond its tensor"
        yield Copy(entry.offset_bytes + start, num_bytes, piece.layer,
                   piece.expert * layout.stride_bytes + part.offset_bytes, _recast(entry, part.dtype))


def _recast(entry: TensorEntry, format: Format) -> Recast | None:
    source = STORE_DTYPES[entry.dtype]
    return None if format == source else Recast(entry.name, source, format)


def _widest_used(plan: TensorPlan, dtypes: Mapping[str, DType]) -> DType:
    used: Counter[DType] = Counter()
    for name, shape in plan.dense.items():
        used[dtypes[name]] += math.prod(shape) * DTYPE_BYTES[dtypes[name]]
    return used.most_common(1)[0][0]


def _ignored(plan: TensorPlan, name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in plan.ignored)
