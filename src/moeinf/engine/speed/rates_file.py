"""The file in which the rates of a machine are kept, in the store's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from moeinf.engine.speed.rates import Conditions, Products, Rates, Reading
from moeinf.errors import StoreError
from moeinf.store.files import errors_named, make_folders, parse_json_object, publish, read_small
from moeinf.types import FORMAT_BLOCKS, Format

_VERSION: Final = 2  # of the file, and of how things are measured


def file_of(home: Path, isa: str, threads: int) -> Path:
    """Where the rates of this instruction set and number of threads are kept, in the store's folder."""
    return home / f"rates-{isa}-{threads}.json"


def save(rates: Rates, home: Path) -> Path:
    """Keeps the rates. Raises StoreError."""
    path = file_of(home, rates.conditions.isa, rates.conditions.threads)
    with errors_named(home):
        make_folders(home)
        publish(path, (json.dumps({"version": _VERSION, **rates_json(rates)}, indent=1) + "\n").encode())
    return path


def rates_json(rates: Rates) -> dict[str, object]:
    fields = asdict(rates)
    return {**fields.pop("conditions"), **fields}


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
    conditions = Conditions(**texts, **counts)  # type: ignore[arg-type]
    seconds = {name: _positive(fields.pop(name)) for name in ("memory", "layer_s", "streamed_layer_s")}
    reading = _reading(_object(fields.pop("reading")))
    direct = fields.pop("direct") is True
    if fields or not disk or not all(products.values()):
        raise ValueError(f"rates: {sorted(fields)}")
    return Rates(conditions, disk, direct, reading=reading, **products, **seconds)  # type: ignore[arg-type]


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
