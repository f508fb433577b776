"""What this machine gives: the rates of its disk, its memory, its products and its GPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import pairwise
from typing import Final, NamedTuple

from moeinf._native import Kernels
from moeinf.hardware import Machine, cpu_name
from moeinf.types import FORMAT_BLOCKS, Format

LAYER_S: Final = 25e-6  # of a layer on a CPU beside its weights, where nobody has measured it
_MEMORY_TOLERANCE: Final = 0.1  # kernels keep more or less of it for themselves


class Kind(NamedTuple):
    """Of weights: rows of a matrix are so many of them wide."""

    format: Format
    width: int


@dataclass(frozen=True, slots=True)
class Reading:
    """Bytes a second that all threads together read of weights in memory, in the median."""

    plain: float  # without computing
    product: float  # as products of one row do

    @property
    def share(self) -> float:
        return self.product / self.plain


@dataclass(frozen=True, slots=True)
class Products:
    """Seconds that all threads together take for one weight of a matrix with so many rows of input, ascending."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def best(self, other: Products) -> Products:
        """The shorter times of two measurements of the same rows."""
        return Products(self.rows, tuple(map(min, self.seconds, other.seconds)))

    def of(self, rows: float) -> float:
        """Between two measured numbers of rows on the line through both; beyond the last, in proportion."""
        pairs = list(zip(self.rows, self.seconds, strict=True))
        if rows <= pairs[0][0]:
            return pairs[0][1]
        for (low, before), (high, after) in pairwise(pairs):
            if rows <= high:
                return before + (after - before) * (rows - low) / (high - low)
        return pairs[-1][1] * rows / pairs[-1][0]


class CardRates(NamedTuple):
    """Of a GPU, in bytes a second."""

    memory: float  # its own, read
    link: float  # from pinned memory of the host


@dataclass(frozen=True, slots=True)
class Conditions:
    """The machine that was measured, and the way in which it was used."""

    cpu: str
    isa: str
    threads: int
    memory_bytes: int  # of the machine
    measured: str  # UTC, ISO 8601
    load: float = 0.0  # of other programs: how many threads of theirs wanted to compute in the minute before

    @classmethod
    def now(cls, kernels: Kernels, machine: Machine) -> Conditions:
        """load: to be called before anything computes."""
        time = datetime.now(timezone.utc).isoformat(timespec="seconds")
        load = round(os.getloadavg()[0], 1)
        return cls(cpu_name(), kernels.isa, kernels.threads, machine.total_bytes, time, load)

    @property
    def was_busy(self) -> bool:
        """Whether other programs may have made the rates lower than they are."""
        return self.load > self.threads / 2

    def fit(self, kernels: Kernels, machine: Machine) -> bool:
        """Whether they are those of this machine, used in this way."""
        alike = (self.cpu, self.isa, self.threads) == (cpu_name(), kernels.isa, kernels.threads)
        return alike and abs(self.memory_bytes - machine.total_bytes) <= machine.total_bytes * _MEMORY_TOLERANCE


@dataclass(frozen=True, slots=True)
class Disks:
    """The folders on other disks that a model's experts are read from, beside the store's."""

    folders: tuple[str, ...] = ()
    first_share: float = 0.0  # of each expert, that the store alone has, and one folder the rest; 0: all have all


STORE_ALONE: Final = Disks()


@dataclass(frozen=True, slots=True)
class Rates:
    """As measured under some conditions."""

    conditions: Conditions
    disk: Mapping[int, float]  # bytes of one read -> bytes a second of several at once
    direct: bool  # whether these reads went past the page cache
    memory: float  # bytes a second that all threads together read; 0 where too little was free to tell
    experts: Mapping[Format, Products]
    linear: Mapping[Format, Products]
    reading: Mapping[Format, Mapping[int, Reading]]  # by width; of those that were asked for so far
    layer_s: float  # of a decode step, for each layer, beside its weights
    streamed_layer_s: float  # the same where experts come from the disk
    also: Mapping[str, Mapping[int, float]] = field(default_factory=dict)  # as `disk`, of folders on other disks

    def with_disks(self, disks: Disks) -> Rates:
        """The same with the rate of these disks together in the place of the store's alone."""
        others = [self.also[folder] for folder in disks.folders]
        if not others:
            return self
        if disks.first_share:
            rest = 1 - disks.first_share
            both = {size: min(rate / disks.first_share, others[0][size] / rest) for size, rate in self.disk.items()}
        else:
            both = {size: rate + sum(other[size] for other in others) for size, rate in self.disk.items()}
        return replace(self, disk=both)

    def disk_rate(self, num_bytes: int) -> float:
        """Bytes a second of reads of so many bytes: those of the nearest measured size."""
        size = min(self.disk, key=lambda each: max(each, num_bytes) / min(each, num_bytes))
        return self.disk[size]

    def reading_of(self, kind: Kind) -> Reading | None:
        """None where nobody has asked for it yet, or too little memory was free to tell."""
        return self.reading.get(kind.format, {}).get(kind.width)

    def with_reading(self, found: Mapping[Kind, Reading]) -> Rates:
        reading = {format: dict(by_width) for format, by_width in self.reading.items()}
        for kind, each in found.items():
            reading.setdefault(kind.format, {})[kind.width] = each
        return replace(self, reading=reading)


def rates_of_reading(found: Mapping[Kind, Reading], conditions: Conditions) -> Rates:
    """What decode steps without the disk are forecast from where no more was measured. found: at least one."""
    products = {
        kind.format: Products((1,), (_bits(kind.format) / 8 / reading.product,)) for kind, reading in found.items()
    }
    memory = max(reading.plain for reading in found.values())
    return Rates(conditions, {}, True, memory, products, products, {}, LAYER_S, LAYER_S).with_reading(found)


def nearest(measured: Mapping[Format, Products], format: Format) -> Products:
    """Those of the format, or of the one whose weights have about as many bits."""
    if format in measured:
        return measured[format]
    return measured[min(measured, key=lambda each: abs(_bits(each) - _bits(format)))]


def _bits(format: Format) -> float:
    weights, num_bytes = FORMAT_BLOCKS[format]
    return 8 * num_bytes / weights
