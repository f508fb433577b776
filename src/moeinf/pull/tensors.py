"""The tensors of a checkpoint by name: where each lies, what it holds, and which others are its scales."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.pull.source import INDEX_FILE, Shards
from moeinf.store.format import STORE_DTYPES, Header, TensorEntry
from moeinf.types import DType, Format, TensorPlan

_FP8 = "F8_E4M3"
_FP8_SCALES = "_scale_inv"  # behind the name of the weights


class Tensors:
    """Every tensor of a checkpoint, by the plan's name for it.

    Those in FP8 count as bf16 matrices, those in MXFP4 as what they are.
    """

    def __init__(
        self, shards: Shards, headers: Mapping[str, Header], plan: TensorPlan, fp8_block: tuple[int, int] | None
    ) -> None:
        """headers: of each file in shards; fp8_block: rows and columns of FP8's tiles.

        Raises CheckpointError for a tensor that is in two shards, or not where the index has it.
        """
        self._found: dict[str, tuple[str, TensorEntry]] = {}
        self._mxfp4 = plan.scales
        self.fp8_block = fp8_block
        for shard in shards.files:
            for found, entry in headers[shard].items():
                name = _renamed(found, plan)
                if name in self._found:
                    raise CheckpointError(f"{shard}: tensor {found!r} is also in {self._found[name][0]}")
                self._found[name] = shard, entry
        for found, shard in (shards.weight_map or {}).items():
            name = _renamed(found, plan)
            if name not in self._found or self._found[name][0] != shard:
                raise CheckpointError(f"{shard} lacks tensor {found!r}, which {INDEX_FILE} puts there")

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def names(self) -> Collection[str]:
        return self._found.keys()

    def shard(self, name: str) -> str:
        return self._found[name][0]

    def entry(self, name: str) -> TensorEntry:
        return self._found[name][1]

    def is_fp8(self, name: str) -> bool:
        return self.entry(name).dtype == _FP8 and self.fp8_block is not None

    def format(self, name: str) -> Format | None:
        """Returns the format in which a tensor is stored unquantised; None for one that moeinf does not read."""
        entry = self.entry(name)
        if name in self._mxfp4:
            return "mxfp4" if entry.dtype == "U8" else None
        return "bf16" if self.is_fp8(name) else STORE_DTYPES.get(entry.dtype)

    def dtype(self, name: str) -> DType:
        """Returns the type of a tensor of floating numbers, which `check_readable` and `check_shape` have passed."""
        return "bf16" if self.is_fp8(name) else STORE_DTYPES[self.entry(name).dtype]

    def scales_of(self, name: str) -> str | None:
        """Returns the name of the tensor with the scales of this one's blocks, whether that is there or not."""
        return name + _FP8_SCALES if self.is_fp8(name) else self._mxfp4.get(name)

    def check_readable(self, name: str) -> None:
        """Raises UnsupportedModelError for a tensor of a type that is not converted."""
        if self.format(name) is not None:
            return
        shard, entry = self._found[name]
        unexplained = " without a weight_block_size in config.json" if entry.dtype == _FP8 else ""
        raise UnsupportedModelError(
            f"{shard}: tensor {name!r} has dtype {entry.dtype}{unexplained}; moeinf converts "
            "bf16, f16 and f32 checkpoints, so pull the unquantised original"
        )

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises CheckpointError unless the tensor is there in this shape, and its scales in the one that follows."""
        self._check(name, shape, "config.json implies")
        scales = self.scales_of(name)
        if scales is None:
            return
        self._check(scales, self._scales_shape(name), f"{name!r} implies")
        found = self.entry(scales).dtype
        if found not in (STORE_DTYPES if self.is_fp8(name) else ("U8",)):
            raise UnsupportedModelError(f"{self.shard(scales)}: tensor {scales!r} has dtype {found}, no form of scales")

    def _check(self, name: str, shape: tuple[int, ...], reason: str) -> None:
        if name not in self:
            raise CheckpointError(f"the checkpoint lacks tensor {name!r}; fetch it again")
        shard, entry = self._found[name]
        if entry.shape != shape:
            raise CheckpointError(f"{shard}: tensor {name!r} has shape {list(entry.shape)}, {reason} {list(shape)}")

    def _scales_shape(self, name: str) -> tuple[int, ...]:
        shape = self.entry(name).shape
        if not self.is_fp8(name):
            return shape[:-1]
        assert self.fp8_block is not None
        rows, cols = self.fp8_block
        if len(shape) < 2:
            raise UnsupportedModelError(f"{self.shard(name)}: tensor {name!r} has dtype {_FP8} but is no matrix")
        return (*shape[:-2], -(-shape[-2] // rows), -(-shape[-1] // cols))


def _renamed(name: str, plan: TensorPlan) -> str:
    for pattern, known in plan.renamed.items():
        renamed, count = re.subn(pattern, known, name, count=1)
        if count:
            return renamed
    return name
