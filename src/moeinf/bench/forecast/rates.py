"""What this machine gives: the rates that `moeinf doctor` measures, and the file in which they are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from moeinf.errors import StoreError
from moeinf.hardware import Machine, cpu_name
from moeinf.store.files import errors_named, make_folders, parse_json_object, publish, read_small
from moeinf.types import FORMAT_BLOCKS, Format

_VERSION: Final = 2  # of the file, and of how things are measured
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


@dataclass(frozen=True, slots=True)
class Rates:
    """As measured on one machine, with one instruction set and number of threads."""

    cpu: str
    isa: str
    threads: int
    memory_bytes: int  # of the machine
    measured: str  # UTC, ISO 8601
    disk: Mapping[int, float]  # bytes of one read -> bytes a second of several at once
    direct: bool  # whether these reads went past the page cache
    memory: float  # bytes a second that all threads together read; 0 where too little was free to tell
    experts: Mapping[Format, Products]
    linear: Mapping[Format, Products]
    reading: Mapping[Format, Mapping[int, Reading]]  # by width; of those that were asked for so far
    layer_s: float  # of a decode step, for each layer, beside its weights
    streamed_layer_s: float  # the same where experts come from the disk

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

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def fits(self, machine: Machine, isa: str, threads: int) -> bool:
        """Whether they are those of this machine, used in this way."""
        alike = (self.cpu, self.isa, self.threads) == (cpu_name(), isa, threads)
        return alike and abs(self.memory_bytes - machine.total_bytes) <= machine.total_bytes * _MEMORY_TOLERANCE


def nearest(measured: Mapping[Format, Products], format: Format) -> Products:
    """Those of the format, or of the one whose weights have about as many bits."""
    if format in measured:
        return measured[format]
    return measured[min(measured, key=lambda each: abs(_bits(each) - _bits(format)))]


def _bits(format: Format) -> float:
    weights, num_bytes = FORMAT_BLOCKS[format]
    return 8 * num_bytes / weights


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def file_of(home: Path, isa: str, threads: int) -> Path:
    """Where the rates of this instruction set and number of threads are kept, in the store's folder."""
    return home / f"rates-{isa}-{threads}.json"


def save(rates: Rates, home: Path) -> Path:
    """Keeps the rates. Raises StoreError."""
    path = file_of(home, rates.isa, rates.threads)
    with errors_named(home):
        make_folders(home)
        publish(path, (json.dumps({"version": _VERSION, **rates.to_json()}, indent=1) + "\n").encode())
    return path


def load(path: Path) -> Rates | None:
    """The rates that were kept; None where there are none, and where they were measured in another way."""
    try:
        value = parse_json_object(read_small(path, 1 << 16), str(path), StoreError)
        return _parse(value) if value.get("version") == _VERSION else None
    except (OSError, StoreError, KeyError, TypeError, ValueError, AttributeError):
        return None  # they can be measured again


def _parse(value: Mapping[str, object]) -> Rates:
    fields = {name: each for name, each in value.items() if name != "version"}
    disk = {int(size): _positive(rate) for size, rate in _object(fields.pop("disk")).items()}
    products = {name: _products(_object(fields.pop(name))) for name in ("experts", "linear")}
    texts = {name: str(fields.pop(name)) for name in ("cpu", "isa", "measured")}
    counts = {name: int(_positive(fields.pop(name))) for name in ("threads", "memory_bytes")}
    seconds = {name: _positive(fields.pop(name)) for name in ("memory", "layer_s", "streamed_layer_s")}
    reading = _reading(_object(fields.pop("reading")))
    direct = fields.pop("direct") is True
    if fields or not disk or not all(products.values()):
        raise ValueError(f"rates: {sorted(fields)}")
    return Rates(disk=disk, direct=direct, reading=reading, **texts, **counts, **products, **seconds)  # type: ignore[arg-type]


def _products(value: Mapping[str, object]) -> dict[Format, Products]:
    found: dict[Format, Products] = {}
    for format in FORMAT_BLOCKS:
        if format in value:
            each = _object(value[format])
            rows, seconds = _list(each["rows"]), _list(each["seconds"])
            if len(rows) != len(seconds) or not rows:
                raise ValueError(format)
            found[format] = Products(tuple(int(_positive(n)) for n in rows), tuple(_positive(s) for s in seconds))
    return found


def _reading(value: Mapping[str, object]) -> dict[Format, dict[int, Reading]]:
    found: dict[Format, dict[int, Reading]] = {}
    for format in FORMAT_BLOCKS:
        for width, each in _object(value.get(format, {})).items():
            reading = Reading(**{name: _positive(rate) for name, rate in _object(each).items()})
            if not (reading.plain and reading.product):
                raise ValueError(format)
            found.setdefault(format, {})[int(width)] = reading
    return found


def _object(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError("no object")
    return dict(value)


def _list(value: object) -> Sequence[object]:
    if not isinstance(value, list):
        raise ValueError("no list")
    return value


def _positive(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"{value!r} is no rate")
    return float(value)
