"""Holds a checkpoint's tensors against an architecture's plan: every fault by name, then which bytes go where."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.store.format import DENSE_FILE, STORE_DTYPES, Header, TensorEntry, dense_header, expert_layout, shard_file
from moeinf.store.source import INDEX_FILE, Shards
from moeinf.types import DTYPE_BYTES, DType, ExpertLayout, ExpertPiece, MoeShape, TensorPlan

DENSE = -1  # the target of a copy into the dense file; others are numbers of MoE layers
ExpertNames = Mapping[str, tuple[tuple[int, ...], tuple[ExpertPiece, ...]]]


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes of a source shard that belong into one file of the store."""

    source_offset: int
    num_bytes: int
    target: int  # DENSE or a MoE layer
    target_offset: int


@dataclass(frozen=True, slots=True)
class Conversion:
    """All that is to be written, known before the first byte of weights is read."""

    moe: MoeShape
    layout: ExpertLayout
    dtype: DType  # of most bytes of the dense tensors
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


def plan_conversion(plan: TensorPlan, shards: Shards, headers: Mapping[str, Header]) -> Conversion:
    """headers: of each file in shards. Raises CheckpointError naming the first tensor that does not fit the plan."""
    tensors = _tensors_by_name(shards, headers)
    for name, (shard, entry) in tensors.items():
        if entry.dtype not in STORE_DTYPES and not _ignored(plan, name):
            raise UnsupportedModelError(f"{shard}: tensor {name!r} has dtype {entry.dtype}; moeinf converts bf16, f16 "
                                        "and f32 checkpoints, so pull the unquantised original")
    experts = _expert_names(plan, tensors)
    for name, shape in (*plan.dense.items(), *((name, shape) for name, (shape, _) in experts.items())):
        _check_tensor(name, shape, tensors)
    for name, (shard, _) in tensors.items():
        if name not in plan.dense and name not in experts and not _ignored(plan, name):
            raise CheckpointError(f"{shard}: tensor {name!r} does not belong to this architecture")
    expert_dtype = _expert_dtype(experts, tensors)
    layout = expert_layout([(part, expert_dtype, shape) for part, shape in plan.parts.items()])
    dense = {name: (STORE_DTYPES[tensors[name][1].dtype], shape) for name, shape in plan.dense.items()}
    head, specs = dense_header(dense)
    copies: dict[str, list[Copy]] = {shard: [] for shard in shards.files}
    for spec in specs:
        shard, entry = tensors[spec.name]
        copies[shard].append(Copy(entry.offset_bytes, spec.num_bytes, DENSE, spec.offset_bytes))
    for name, (_, pieces) in experts.items():
        shard, entry = tensors[name]
        copies[shard] += _expert_copies(entry, pieces, layout, DTYPE_BYTES[expert_dtype])
    return Conversion(
        plan.moe, layout, _widest_used(dense), head, len(head) + sum(spec.num_bytes for spec in specs),
        {shard: tuple(sorted(found, key=lambda copy: copy.source_offset)) for shard, found in copies.items()},
    )


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


def _expert_copies(entry: TensorEntry, pieces: tuple[ExpertPiece, ...], layout: ExpertLayout, width: int
                   ) -> Iterator[Copy]:
    parts = {spec.name: spec for spec in layout.tensors}
    for piece in pieces:
        part = parts[piece.part]
        assert piece.start_element * width + part.num_bytes <= entry.num_bytes, "the plan cuts beyond its tensor"
        yield Copy(entry.offset_bytes + piece.start_element * width, part.num_bytes, piece.layer,
                   piece.expert * layout.stride_bytes + part.offset_bytes)


def _widest_used(dense: Mapping[str, tuple[DType, tuple[int, ...]]]) -> DType:
    used: Counter[DType] = Counter()
    for dtype, shape in dense.values():
        used[dtype] += math.prod(shape) * DTYPE_BYTES[dtype]
    return used.most_common(1)[0][0]


def _ignored(plan: TensorPlan, name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in plan.ignored)
