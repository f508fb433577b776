"""What every scheme has in common: the tensors that a matrix is made of, and codes that become weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.store.format import STORE_DTYPES, TensorEntry
from moeinf.types import DType, Float32Array, Format, IntArray

Shape = tuple[int, ...]
Numbers = npt.NDArray[np.int16]
BLOCK = 32  # weights of those blocks that hold codes as they are


class Pool(Protocol):
    """The tensors of a checkpoint by name."""

    def found(self, name: str) -> tuple[str, TensorEntry] | None:
        """Returns the shard of a tensor, and what its header says of it; None for one that is not there."""
        ...


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows of a matrix: each weight is its code, as a whole number or a float, times the scale of its group."""

    codes: Numbers | Float32Array  # [rows, cols]
    scales: Float32Array  # [rows, groups]
    groups: IntArray | None = None  # of each column; None where neighbours share a scale, as many everywhere

    def each(self, scales: Float32Array) -> Float32Array:
        """Returns the scale of each weight, or one for each row."""
        if self.groups is not None:
            return scales[:, self.groups]
        return scales if scales.shape[1] == 1 else np.repeat(scales, self.codes.shape[1] // scales.shape[1], axis=1)

    def weights(self) -> Float32Array:
        return self.codes.astype(np.float32) * self.each(self.scales)


@dataclass(frozen=True, slots=True)
class Scheme(ABC):
    """One matrix, or a stack of them, and how it is coded. Made after the headers alone."""

    name: str  # of the matrix, as the plan of a family has it
    shape: Shape  # [..., rows, cols]
    codes: str  # the tensor that is read from one end to the other
    others: tuple[str, ...]  # those that are read beside it
    words: str  # for messages
    nearest: Format  # blocks that hold the weights exactly, or come nearest to that
    exact: bool  # as far as scales are numbers in f16, where the blocks have those
    plain: DType  # of a matrix that cannot be in blocks

    # The type of the products, before they are quantised, and whether the codes can be cut between rows.
    through: ClassVar[Literal["f32", "bf16"]] = "f32"
    by_rows: ClassVar[bool] = False

    @property
    def others_by_rows(self) -> bool:
        """Whether each row has its own part of what is read beside the codes, one behind the other."""
        return False

    @property
    def rows(self) -> int:
        return self.shape[-2]

    @property
    def cols(self) -> int:
        return self.shape[-1]

    @property
    def kept(self) -> Format:
        """The format of the store where no other one is asked for."""
        return self.nearest if self.cols % BLOCK == 0 else self.plain

    def turned(self) -> Scheme | None:
        """The same of matrices whose rows are the columns of these; None where that is not read."""
        return None

    @abstractmethod
    def decode(self, codes: memoryview, others: Sequence[memoryview], rows: range) -> Decoded:
        """Decodes rows of a matrix. codes, others: of the whole matrix; where they can be cut, of these rows alone.

        Raises ValueError for values that the scheme does not allow. Any thread may call it.
        """


def member(pool: Pool, of: str, name: str, dtypes: Collection[str], *shapes: Shape) -> TensorEntry:
    """Returns a tensor that a matrix is made of.

    Raises CheckpointError unless it is there in one of the shapes, UnsupportedModelError unless in one of the types.
    """
    place = pool.found(name)
    if place is None:
        raise CheckpointError(f"the checkpoint lacks tensor {name!r}, without which {of!r} cannot be read")
    shard, entry = place
    if entry.shape not in shapes:
        implied = " or ".join(str(list(shape)) for shape in shapes)
        raise CheckpointError(f"{shard}: tensor {name!r} has shape {list(entry.shape)}, {of!r} implies {implied}")
    if entry.dtype not in dtypes:
        raise UnsupportedModelError(
            f"{shard}: tensor {name!r} has dtype {entry.dtype}, must be {' or '.join(sorted(dtypes))}"
        )
    return entry


def groups_of(pool: Pool, of: str, name: str, rows: int, cols: int, declared: int | None, columns: int) -> int:
    """Returns how many groups share a scale in each row. columns: the dimension of `name` that counts groups.

    declared: the columns of a group, -1 for all of a row; None where the config does not say.
    """
    place = pool.found(name)
    if place is None:
        raise CheckpointError(f"the checkpoint lacks tensor {name!r}, without which {of!r} cannot be read")
    shard, entry = place
    count = entry.shape[columns] if len(entry.shape) == 2 else 1
    size = cols if declared == -1 else declared
    if size is not None and (cols % size or count != cols // size):
        raise CheckpointError(
            f"{shard}: tensor {name!r} has {count} groups in a row, {of!r} of {cols} columns in groups of {size} "
            f"{'cannot have whole ones' if cols % size else f'has {cols // size}'}"
        )
    if not count or cols % count:
        raise CheckpointError(
            f"{shard}: tensor {name!r} has {count} groups in a row, which do not divide the {cols} columns of {of!r}"
        )
    return count


def floats(data: memoryview, dtype: str) -> Float32Array:
    """The numbers of a tensor, whose type is spelt as in the file."""
    if dtype == "BF16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype == "F8_E4M3":
        return E4M3[np.frombuffer(data, np.uint8)]
    if dtype == POWERS:
        return powers(np.frombuffer(data, np.uint8))
    return np.frombuffer(data, np.float16 if dtype == "F16" else np.float32).astype(np.float32)


def powers(exponents: npt.NDArray[np.uint8]) -> Float32Array:
    """Powers of two by their exponents. Raises ValueError for the code that is no number."""
    if (exponents == 255).any():
        raise ValueError("has a scale that is NaN")
    values: Float32Array = np.ldexp(np.float32(1), exponents.astype(np.int32) - 127)
    return values


def plain_of(dtype: str) -> DType:
    """The type of the weights that published programs make with scales of this one."""
    return "f16" if dtype == "F16" else "bf16"


def unpacked(words: npt.NDArray[np.uint32], bits: int) -> Numbers:
    """The fields of words [..., n], the lowest bits first: [..., n * 32 / bits]."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    fields = words[..., None] >> shifts & np.uint32((1 << bits) - 1)
    numbers: Numbers = fields.astype(np.int16).reshape(*words.shape[:-1], -1)
    return numbers


FLOATS = frozenset(STORE_DTYPES)
POWERS = "F8_E8M0"  # scales that are powers of two


def _e4m3_values() -> Float32Array:
    """Values of float8_e4m3fn by code: a sign, 4 bits of exponent, 3 of fraction; no infinity, and all ones is NaN."""
    codes = np.arange(256)
    exponent, fraction = codes >> 3 & 15, codes & 7
    values = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7))
    values[codes & 127 == 127] = np.nan
    return np.where(codes & 128, -values, values).astype(np.float32)


E4M3 = _e4m3_values()
E4M3.flags.writeable = False
# Values of float4_e2m1 by code: a sign, 2 bits of exponent, 1 of fraction.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
E2M1.flags.writeable = False
