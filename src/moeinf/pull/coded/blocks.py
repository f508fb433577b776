"""Coded matrices on their way into the store: blocks that hold the codes as they are, or the nearest, and the loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from moeinf._native import dequantise, quantise
from moeinf.pull.coded.scheme import BLOCK, E2M1, Decoded, Scheme
from moeinf.store.numbers import NOT_FINITE, bf16_bits, first_not_finite, plain_dtype
from moeinf.types import FORMAT_BLOCKS, DType, Float32Array, Format, format_bytes

_WEIGHTS_AT_ONCE = 1 << 20
_LARGEST = 65504.0  # of f16
_RANGES: Mapping[Format, tuple[int, int]] = {"q4_0": (-8, 7), "q5_0": (-16, 15), "q8_0": (-128, 127)}

Bytes = npt.NDArray[np.uint8]


class Loss(NamedTuple):
    """How far stored weights are from those of the checkpoint."""

    largest: float = 0.0  # difference, as a part of the largest weight of its matrix
    squares_lost: float = 0.0  # sums over all weights
    squares: float = 0.0

    def plus(self, other: Loss) -> Loss:
        return Loss(
            max(self.largest, other.largest), self.squares_lost + other.squares_lost, self.squares + other.squares
        )

    @property
    def rms(self) -> float:
        return float(np.sqrt(self.squares_lost / self.squares)) if self.squares else 0.0


Losses = Mapping[str, Loss]  # by what was coded in which way, and is stored as what


@dataclass(frozen=True, slots=True)
class CodedRows:
    """Makes what is stored of rows of a coded matrix. A scheme that cannot be cut has the whole matrix as its unit."""

    scheme: Scheme
    format: Format
    rows: range  # of the matrix, that are stored; where it can be cut, the run begins with the first of them
    unit_bytes: int

    @property
    def tensor(self) -> str:
        return self.scheme.codes

    @property
    def kind(self) -> str:
        """Under which a loss is counted; "" where it is not."""
        return loss_kind(self.scheme, self.format)

    def stored_bytes(self, num_bytes: int) -> int:
        rows = num_bytes // self.unit_bytes if self.scheme.by_rows else len(self.rows) * (num_bytes > 0)
        return format_bytes(self.format, (rows, self.scheme.cols))

    def part(self, start: int) -> CodedRows:
        return replace(self, rows=self.rows[start // self.unit_bytes :]) if self.scheme.by_rows else self

    def apply(self, data: memoryview, others: Sequence[memoryview]) -> memoryview:
        return self.measured(data, others)[0]

    def measured(self, data: memoryview, others: Sequence[memoryview]) -> tuple[memoryview, Losses]:
        """Returns the stored bytes, and what was lost by that. Raises ValueError for what no format has a place for."""
        scheme, cols = self.scheme, self.scheme.cols
        rows = self.rows[: len(data) // self.unit_bytes] if scheme.by_rows else self.rows
        step = max(BLOCK, _WEIGHTS_AT_ONCE // cols // BLOCK * BLOCK)  # words hold the zero points of several rows
        row_bytes = format_bytes(self.format, (cols,))
        out = np.empty((len(rows), row_bytes), np.uint8)
        largest = error = lost = squares = 0.0
        for at in range(0, len(rows), step):
            taken = rows[at : at + step]
            codes = data[at * self.unit_bytes :][: len(taken) * self.unit_bytes] if scheme.by_rows else data
            decoded = scheme.decode(codes, self._beside(others, at, len(taken), len(rows)), taken)
            out[at : at + step], stored = encoded(decoded, self.format, scheme.through, bool(self.kind))
            if self.kind:
                weights = decoded.weights()
                largest = max(largest, float(np.abs(weights).max(initial=0)))
                squares += _squares(weights)
            if self.kind and stored is not None:
                difference = stored - weights
                error = max(error, float(np.abs(difference).max(initial=0)))
                lost += _squares(difference)
        found = out.reshape(-1).data
        plain = plain_dtype(self.format)
        if plain and first_not_finite(found, plain, scheme.name) >= 0:
            raise ValueError(f"has weights or scales that are NaN or infinite; {NOT_FINITE}")
        return found, {self.kind: Loss(error / largest if largest else 0.0, lost, squares)} if self.kind else {}

    def _beside(self, others: Sequence[memoryview], first: int, count: int, of: int) -> Sequence[memoryview]:
        """Of `others`, which are those of so many rows, the parts of some."""
        if not self.scheme.others_by_rows:
            return others
        return [each[len(each) // of * first :][: len(each) // of * count] for each in others]


def loss_kind(scheme: Scheme, format: Format) -> str:
    """Under which a loss is counted; "" where the format was chosen, and for what is no loss by definition."""
    told = format in (scheme.kept, scheme.plain) and scheme.through == "f32"
    return f"{scheme.words} as {format}" if told else ""


@dataclass(frozen=True, slots=True)
class Kind:
    """Coded matrices of one scheme that are stored in one format."""

    words: str
    format: Format
    exact: bool
    names: tuple[str, ...]  # of parts of experts, and of dense tensors

    def line(self, loss: Loss | None) -> str:
        """Tells what is lost, "" for nothing. Without a loss: before anything is converted."""
        if loss is None:
            reason = "no block holds it exactly" if not self.exact else ""
        elif loss.squares_lost:
            figures = f"the largest error is {_percent(loss.largest)} of its matrix's largest weight"
            reason = f"{figures}, the root of the mean square {_percent(loss.rms)}"
        else:
            return ""
        return f"{_listed(self.names)}: {self.words} as {self.format}: {reason}" if reason else ""


def lines(kinds: Mapping[str, Kind], losses: Losses | None) -> tuple[str, ...]:
    found = (kind.line(None if losses is None else losses.get(key, Loss())) for key, kind in sorted(kinds.items()))
    return tuple(line for line in found if line)


def added(losses: Iterable[Losses]) -> dict[str, Loss]:
    total: dict[str, Loss] = {}
    for each in losses:
        for kind, loss in each.items():
            total[kind] = total.get(kind, Loss()).plus(loss)
    return total


def _listed(names: Sequence[str]) -> str:
    experts = [name for name in names if name.startswith("expert ")]
    dense = [name for name in names if not name.startswith("expert ")]
    return ", ".join([*experts, *(dense if len(dense) <= 3 else [f"{len(dense)} dense tensors"])])


def _percent(part: float) -> str:
    return f"{100 * part:.2g} %"


def _squares(values: Float32Array) -> float:
    return float(np.square(values, dtype=np.float64).sum())


def encoded(decoded: Decoded, format: Format, through: DType, measure: bool) -> tuple[Bytes, Float32Array | None]:
    """Returns stored rows, and where that is asked for the weights that they hold, None for exactly those decoded."""
    exact = _blocks_of_codes(decoded, format) or _mxfp4_blocks(decoded, format)
    if exact is not None:
        return exact
    weights = decoded.weights()
    rows, cols = weights.shape
    out = np.empty((rows, format_bytes(format, (cols,))), np.uint8)
    if format == "f32":
        out[:] = weights.view(np.uint8).reshape(rows, -1)
        return out, None
    plain: npt.NDArray[np.generic] = weights
    if "bf16" in (format, through):
        plain = bf16_bits(weights)
    elif format == "f16":
        if np.abs(weights).max(initial=0) > _LARGEST:
            raise ValueError("holds a weight beyond 65504, which f16 has no place for")
        plain = weights.astype(np.float16)
    if format in ("bf16", "f16"):
        out[:] = plain.view(np.uint8).reshape(rows, -1)
    else:
        source = "bf16" if through == "bf16" else "f32"
        quantise(format, plain.reshape(-1).view(np.uint8).data, source, rows, cols, out.reshape(-1).data)
    if not measure:
        return out, None
    stored = np.empty((rows, cols), np.float32)
    dequantise(format, out.reshape(-1).data, rows, cols, stored)
    return out, stored


def _blocks_of_codes(decoded: Decoded, format: Format) -> tuple[Bytes, Float32Array | None] | None:
    """Returns blocks with the codes as they are; None where the format has no place for them.

    Scales become f16, the nearest, where they were none; then the weights that are stored come with the blocks.
    """
    codes, scales = decoded.codes, decoded.scales
    rows, cols = codes.shape
    if format not in _RANGES or codes.dtype != np.int16 or decoded.groups is not None:
        return None
    low, high = _RANGES[format]
    if cols // scales.shape[1] % BLOCK or codes.min(initial=0) < low or codes.max(initial=0) > high:
        return None
    if not (np.abs(scales) <= _LARGEST).all():  # nor NaN
        raise ValueError("has a scale that is NaN or beyond 65504, which f16 has no place for")
    halves = scales.astype(np.float16)
    blocks = codes.reshape(rows, -1, BLOCK)
    out = np.empty((*blocks.shape[:2], FORMAT_BLOCKS[format][1]), np.uint8)
    out[..., :2] = np.repeat(halves, blocks.shape[1] // halves.shape[1], axis=1)[..., None].view(np.uint8)
    if format == "q8_0":
        out[..., 2:] = blocks.astype(np.int8).view(np.uint8)
    else:
        raised = (blocks - np.int16(low)).astype(np.uint8)
        out[..., -16:] = raised[..., :16] & 15 | raised[..., 16:] << 4
        if format == "q5_0":
            out[..., 2:6] = np.packbits(raised >> 4, axis=-1, bitorder="little")
    stored = halves.astype(np.float32)
    same = np.array_equal(stored, scales)
    return out.reshape(rows, -1), None if same else codes.astype(np.float32) * decoded.each(stored)


def _mxfp4_blocks(decoded: Decoded, format: Format) -> tuple[Bytes, None] | None:
    """Returns MXFP4 blocks of what came in MXFP4; None for anything else."""
    codes, scales = decoded.codes, decoded.scales
    if format != "mxfp4" or codes.dtype != np.float32 or scales.shape[1] * BLOCK != codes.shape[1]:
        return None
    fraction, exponent = np.frexp(scales)
    if decoded.groups is not None or not (fraction == 0.5).all():
        return None
    numbers = np.searchsorted(E2M1[:8], np.abs(codes)).astype(np.uint8) | np.signbit(codes).astype(np.uint8) << 3
    blocks = numbers.reshape(len(codes), -1, BLOCK)
    out = np.empty((*blocks.shape[:2], 17), np.uint8)
    out[..., 0] = (exponent + 126).astype(np.uint8)
    out[..., 1:] = blocks[..., :16] | blocks[..., 16:] << 4
    return out.reshape(len(codes), -1), None
