"""The file in which the rates of a machine are kept, in the store's folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Final

from moeinf.engine.speed.rates import Conditions, Products, Rates, Reading
from moeinf.errors import MALFORMED, StoreError
from moeinf.store.files import errors_named, make_folders, parse_json_object, publish, read_small
from moeinf.types import FORMAT_BLOCKS, Format, JsonObject

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
    except (OSError, StoreError, *MALFORMED):
        return None  # they can be measured again


def _parse(value: JsonObject) -> Rates:
    found = Rates(
        Conditions(
            str(value["cpu"]),
            str(value["isa"]),
            int(_number(value["threads"])),
            int(_number(value["memory_bytes"])),
            str(value["measured"]),
            _number(value.get("load", 0.0)),
        ),
        _by_size(value["disk"]),
        value["direct"] is True,
        _number(value["memory"]),
        _products(value["experts"]),
        _products(value["linear"]),
        {format: _reading(value["reading"][format]) for format in FORMAT_BLOCKS if format in value["reading"]},
        _number(value["layer_s"]),
        _number(value["streamed_layer_s"]),
        {folder: _by_size(rates) for folder, rates in value.get("also", {}).items()},
    )
    if {"load", "also", *value} != {"version", *rates_json(found)} or not (
        found.disk and found.experts and found.linear
    ):
        raise ValueError("rates")
    return found


def _by_size(value: JsonObject) -> dict[int, float]:
    return {int(size): _positive(rate) for size, rate in value.items()}


def _products(value: JsonObject) -> dict[Format, Products]:
    found: dict[Format, Products] = {}
    for format in FORMAT_BLOCKS:
        if each := value.get(format):
            pairs = [(int(_number(n)), _number(s)) for n, s in zip(each["rows"], each["seconds"], strict=True)]
            rows, seconds = zip(*pairs, strict=True)
            if rows[0] < 1 or list(rows) != sorted(set(rows)):
                raise ValueError("numbers of rows that do not ascend")
            found[format] = Products(rows, seconds)
    return found


def _reading(value: JsonObject) -> dict[int, Reading]:
    return {int(width): Reading(_positive(each["plain"]), _positive(each["product"])) for width, each in value.items()}


def _positive(value: object) -> float:
    if number := _number(value):
        return number
    raise ValueError("0 is no rate")


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"{value!r} is no rate")
    return float(value)
