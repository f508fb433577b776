"""What llama.cpp's converter does to the tensors of some families, undone in memory.

Steps on rows and shapes move whole rows, so they take quantised tensors as they lie. What computes, and what moves
numbers within a row, takes plain ones: blocks are widened to f32 before. `outcome` says what comes out, before anything
is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from moeinf._native import dequantise
from moeinf.errors import StoreError
from moeinf.types import FORMAT_BLOCKS, ByteArray, Format, Json, JsonObject, block_of, format_bytes


@dataclass(frozen=True, slots=True)
class Kind:
    """What a tensor is, without its values."""

    format: Format
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return format_bytes(self.format, self.shape)

    @property
    def plain(self) -> bool:
        return block_of(self.format)[0] == 1


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as it lies: blocks of a format, row after row."""

    kind: Kind
    data: ByteArray  # [num_bytes]

    @property
    def rows(self) -> ByteArray:
        """[rows, bytes of a row]"""
        return self.data.reshape(math.prod(self.kind.shape[:-1]), -1)


class Unsound(Exception):
    """What a tensor has instead of what it must have."""


class Step(Protocol):
    """One thing that was done to a tensor, undone."""

    def becomes(self, kinds: Sequence[Kind]) -> Kind | None:
        """What it makes of tensors of these kinds; None where it does not take their formats."""
        ...

    def apply(self, sources: Sequence[Stored]) -> ByteArray: ...


@dataclass(frozen=True, slots=True)
class Reshape:
    """The same numbers, in another shape with rows as long (or any, of a plain tensor)."""

    shape: tuple[int, ...]

    def becomes(self, kinds: Sequence[Kind]) -> Kind | None:
        (kind,) = kinds
        fits = math.prod(kind.shape) == math.prod(self.shape) and (kind.plain or kind.shape[-1] == self.shape[-1])
        return Kind(kind.format, self.shape) if fits else None

    def apply(self, sources: Sequence[Stored]) -> ByteArray:
        return sources[0].data


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows from `start` on (a vector's numbers), seen as an array of `sizes`, in another order of its axes."""

    start: int
    sizes: tuple[int, ...]
    axes: tuple[int, ...]

    def becomes(self, kinds: Sequence[Kind]) -> Kind | None:
        (kind,) = kinds
        rows = kind.shape[0] if len(kind.shape) > 1 or kind.plain else 0
        return kind if rows == self.start + math.prod(self.sizes) and len(kind.shape) < 3 else None

    def apply(self, sources: Sequence[Stored]) -> ByteArray:
        rows = sources[0].data.reshape(sources[0].kind.shape[0], -1)
        behind = rows[self.start :].reshape(*self.sizes, -1).transpose(*self.axes, len(self.axes))
        return np.concatenate([rows[: self.start].reshape(-1), behind.reshape(-1)])


@dataclass(frozen=True, slots=True)
class RowsOfHeads:
    """The first rows of each head, seen as an array of `sizes`, in another order of its axes; others stay."""

    heads: int
    sizes: tuple[int, ...]
    axes: tuple[int, ...]

    def becomes(self, kinds: Sequence[Kind]) -> Kind | None:
        (kind,) = kinds
        rows = kind.shape[0] if len(kind.shape) == 2 or (len(kind.shape) == 1 and kind.plain) else 0
        fits = self.heads > 0 and rows % self.heads == 0 and 0 < math.prod(self.sizes) <= rows // self.heads
        return kind if fits else None

    def apply(self, sources: Sequence[Stored]) -> ByteArray:
        heads = sources[0].data.reshape(self.heads, sources[0].kind.shape[0] // self.heads, -1)
        count = math.prod(self.sizes)
        order = (0, *(1 + axis for axis in self.axes), 1 + len(self.axes))
        moved = heads[:, :count].reshape(self.heads, *self.sizes, -1).transpose(order)
        return np.concatenate([moved.reshape(self.heads, count, -1), heads[:, count:]], axis=1).reshape(-1)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a matrix, seen as an array of `sizes`, in another order of its axes."""

    sizes: tuple[int, ...]
    axes: tuple[int, ...]

    def _block(self, kind: Kind) -> int:
        """Bytes of what is moved as one, 0 where that would cut a block."""
        fixed = self.sizes[-1] if self.axes[-1] == len(self.axes) - 1 else 1
        weights, _ = FORMAT_BLOCKS[kind.format]
        return 0 if fixed % weights else format_bytes(kind.format, (fixed,))

    def becomes(self, kinds: Sequence[Kind]) -> Kind | None:
        (kind,) = kinds
        return kind if len(kind.shape) == 2 and kind.shape[1] == math.prod(self.sizes) and self._block(kind) else None

    def apply(self, sources: Sequence[Stored]) -> ByteArray:
        (source,) = sources
        fixed = self.axes[-1] == len(self.axes) - 1
        sizes = self.sizes[:-1] if fixed else self.sizes
        axes = self.axes[:-1] if fixed else self.axes
        moved = source.data.reshape(source.kind.shape[0], *sizes, self._block(source.kind))
        order = (0, *(1 + axis for axis in axes), 1 + len(axes))
        return np.ascontiguousarray(moved.transpose(order)).reshape(-1)


@dataclass(frozen=True, slots=True)
class TakeRows:
    """Some rows of a tensor, or numbers of a vector."""

    start: int
    count: int

    def becomes(self, kinds: Sequence[Kind]) -> Kind | None:
        (kind,) = kinds
        fits = self.start + self.count <= kind.shape[0] and (len(kind.shape) > 1 or kind.plain)
        return Kind(kind.format, (self.count, *kind.shape[1:])) if fits else None

    def apply(self, sources: Sequence[Stored]) -> ByteArray:
        rows = sources[0].data.reshape(sources[0].kind.shape[0], -1)
        return rows[self.start : self.start + self.count].reshape(-1)


@dataclass(frozen=True, slots=True)
class Stack:
    """The rows of several matrices, one behind the other."""

    def becomes(self, kinds: Sequence[Kind]) -> Kind | None:
        first = kinds[0]
        alike = all((kind.format, kind.shape[1:]) == (first.format, first.shape[1:]) for kind in kinds)
        return Kind(first.format, (sum(kind.shape[0] for kind in kinds), *first.shape[1:])) if alike else None

    def apply(self, sources: Sequence[Stored]) -> ByteArray:
        return np.concatenate([source.data for source in sources])


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Matrices [n, rows, cols], the columns of which lie beside each other: [rows, n * cols]."""

    def becomes(self, kinds: Sequence[Kind]) -> Kind | None:
        (kind,) = kinds
        if len(kind.shape) != 3:
            return None
        count, rows, cols = kind.shape
        return Kind(kind.format, (rows, count * cols))

    def apply(self, sources: Sequence[Stored]) -> ByteArray:
        count, rows, _ = sources[0].kind.shape
        return np.ascontiguousarray(sources[0].data.reshape(count, rows, -1).transpose(1, 0, 2)).reshape(-1)


@dataclass(frozen=True, slots=True)
class Subtract:
    """A norm that is stored with one added."""

    number: float

    def becomes(self, kinds: Sequence[Kind]) -> Kind | None:
        return kinds[0] if kinds[0].format == "f32" else None

    def apply(self, sources: Sequence[Stored]) -> ByteArray:
        values = sources[0].data.view(np.float32) - np.float32(self.number)
        raw: ByteArray = values.astype(np.float32).view(np.uint8)
        return raw


@dataclass(frozen=True, slots=True)
class Log:
    """exp(x) was stored instead of x."""

    def becomes(self, kinds: Sequence[Kind]) -> Kind | None:
        return kinds[0] if kinds[0].format == "f32" else None

    def apply(self, sources: Sequence[Stored]) -> ByteArray:
        return _log(sources[0].data.view(np.float32))


@dataclass(frozen=True, slots=True)
class LogOfNegative:
    """-exp(x) was stored instead of x."""

    def becomes(self, kinds: Sequence[Kind]) -> Kind | None:
        return kinds[0] if kinds[0].format == "f32" else None

    def apply(self, sources: Sequence[Stored]) -> ByteArray:
        return _log(-sources[0].data.view(np.float32))


def _log(values: npt.NDArray[np.float32]) -> ByteArray:
    with np.errstate(all="ignore"):  # what is no number is found where weights are looked at
        raw: ByteArray = np.log(values.astype(np.float64)).astype(np.float32).view(np.uint8)
    return raw


@dataclass(frozen=True, slots=True)
class Ones:
    """As many ones: a factor that was multiplied into the tensor."""

    def becomes(self, kinds: Sequence[Kind]) -> Kind | None:
        return Kind("f32", kinds[0].shape)

    def apply(self, sources: Sequence[Stored]) -> ByteArray:
        ones: ByteArray = np.ones(math.prod(sources[0].kind.shape), np.float32).view(np.uint8)
        return ones


@dataclass(frozen=True, slots=True)
class FillUp:
    """A vector of which zeros at the end were left out."""

    count: int

    def becomes(self, kinds: Sequence[Kind]) -> Kind | None:
        (kind,) = kinds
        fits = kind.format == "f32" and len(kind.shape) == 1 and kind.shape[0] <= self.count
        return Kind("f32", (self.count,)) if fits else None

    def apply(self, sources: Sequence[Stored]) -> ByteArray:
        found: ByteArray = np.zeros(4 * self.count, np.uint8)
        found[: len(sources[0].data)] = sources[0].data
        return found


@dataclass(frozen=True, slots=True)
class JoinLatentHeads:
    """Keys [heads, rank, nope] and values [heads, value, rank] of latent attention: rows of each head's keys and then
    its values, [heads * (nope + value), rank]."""

    def becomes(self, kinds: Sequence[Kind]) -> Kind | None:
        keys, values = kinds
        if not keys.plain or keys.format != values.format or len(keys.shape) != 3 or len(values.shape) != 3:
            return None
        (heads, rank, nope), (others, value, columns) = keys.shape, values.shape
        return Kind(keys.format, (heads * (nope + value), rank)) if (heads, rank) == (others, columns) else None

    def apply(self, sources: Sequence[Stored]) -> ByteArray:
        width = FORMAT_BLOCKS[sources[0].kind.format][1]
        keys, values = (each.data.reshape(*each.kind.shape, width) for each in sources)
        joined: ByteArray = np.concatenate([keys.transpose(0, 2, 1, 3), values], axis=1).reshape(-1)
        return joined


@dataclass(frozen=True, slots=True)
class Numbers:
    """Whole numbers from 0 on, below a limit, as f32."""

    below: int

    def becomes(self, kinds: Sequence[Kind]) -> Kind | None:
        (kind,) = kinds
        return Kind("f32", kind.shape) if kind.format == "i32" else None

    def apply(self, sources: Sequence[Stored]) -> ByteArray:
        numbers = sources[0].data.view(np.int32)
        least, most = int(numbers.min()), int(numbers.max())
        if least < 0 or most >= self.below:
            raise Unsound(f"has numbers from {least} to {most}, and must be below {self.below}")
        return numbers.astype(np.float32).view(np.uint8)


@dataclass(frozen=True, slots=True)
class Widen:
    """For what computes with numbers alone: norms, routers, the matrix that latent attention folds."""

    def becomes(self, kinds: Sequence[Kind]) -> Kind | None:
        (kind,) = kinds
        return Kind("f32", kind.shape)

    def apply(self, sources: Sequence[Stored]) -> ByteArray:
        return _widened(sources[0]).data


Undo = tuple[Step, ...]  # in this order; the first takes all sources, each of the others what the one before made
_KINDS = (
    *(
        Reshape,
        Rows,
        RowsOfHeads,
        Columns,
        TakeRows,
        Stack,
        SideBySide,
        Subtract,
        Log,
        LogOfNegative,
        Ones,
        FillUp,
        JoinLatentHeads,
        Numbers,
    ),
    Widen,
)
_STEPS: Mapping[str, type[Any]] = {each.__name__: each for each in _KINDS}


def outcome(kinds: Sequence[Kind], undo: Undo) -> Kind | None:
    """What `undone` makes of tensors of these kinds; None where the steps do not fit them."""
    kind = _through(kinds, undo)
    return kind if kind is not None else _through([Kind("f32", each.shape) for each in kinds], undo)


def undone(sources: Sequence[Stored], undo: Undo, name: str = "") -> Stored:
    """Takes all steps, of blocks as they lie where every step takes them. `outcome` has said that the steps fit.

    name: of the tensor. Raises StoreError for numbers that it cannot have.
    """
    if _through([source.kind for source in sources], undo) is None:
        sources = [_widened(source) for source in sources]
    for step in undo:
        kind = step.becomes([source.kind for source in sources])
        assert kind is not None, f"{step} was given {[source.kind for source in sources]}"
        try:
            sources = [Stored(kind, step.apply(sources))]
        except Unsound as fault:
            raise StoreError(f"tensor {name!r} {fault}; fetch the file again") from None
    (result,) = sources
    return result


def _through(kinds: Sequence[Kind], undo: Undo) -> Kind | None:
    for step in undo:
        kind = step.becomes(kinds)
        if kind is None:
            return None
        kinds = [kind]
    return kinds[0] if len(kinds) == 1 else None


def _widened(stored: Stored) -> Stored:
    """In f32."""
    kind, cols = stored.kind, stored.kind.shape[-1]
    if kind.format == "f32":
        return stored
    values = np.empty((math.prod(kind.shape) // cols, cols), np.float32)
    dequantise(kind.format, np.ascontiguousarray(stored.data), len(values), cols, values)
    return Stored(Kind("f32", kind.shape), values.reshape(-1).view(np.uint8))


def undo_json(undo: Undo) -> list[JsonObject]:
    """As a manifest has it."""
    return [{"step": type(step).__name__, **_lists(asdict(step))} for step in undo]  # type: ignore[call-overload]


def _lists(values: JsonObject) -> JsonObject:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def parse_undo(value: Json, where: str) -> Undo:
    """Of `undo_json`. Raises StoreError."""
    if not isinstance(value, list) or len(value) > 8:
        raise StoreError(f"{where} must be a list of steps")
    return tuple(_parse_step(each, where) for each in value)


def _parse_step(value: Json, where: str) -> Step:
    kind = _STEPS.get(str(value.get("step"))) if isinstance(value, dict) else None
    names = set() if kind is None else set(kind.__dataclass_fields__)
    if kind is None or set(value) != names | {"step"}:
        raise StoreError(f"{where} has an unknown step {value!r:.100}")
    fields = {}
    for name in names:
        of = kind.__dataclass_fields__[name].type
        given = value[name]
        numbers = given if of == "tuple[int, ...]" else [given]
        sound = isinstance(numbers, list) and len(numbers) <= 8
        if of == "float":
            sound = sound and given in (1, 1.0)
        else:
            sound = sound and all(type(number) is int and 0 <= number < 1 << 40 for number in numbers)
        if not sound:
            raise StoreError(f"{where}: {name} of step {value['step']} is {given!r:.100}")
        fields[name] = tuple(given) if of == "tuple[int, ...]" else given
    step: Step = kind(**fields)
    axes = getattr(step, "axes", None)
    if axes is not None and (sorted(axes) != list(range(len(axes))) or len(axes) != len(getattr(step, "sizes", ()))):
        raise StoreError(f"{where}: axes of step {value['step']} are {list(axes)}")
    return step
