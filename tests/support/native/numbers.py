"""Rows of the table: numbers, bytes and memory, without an object that remembers anything but memory."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from moeinf import _native
from moeinf.types import FORMAT_BLOCKS
from tests.support.blocks import WRITTEN
from tests.support.native.table import Arguments, World, call, plain


def _largest(given: Arguments, drawn: Any) -> bool:
    return math.isfinite(given["scores"][drawn]) and (given["top_p"] > 0 or drawn == int(given["scores"].argmax()))


@call(
    "draw_token",
    "no scores, a NaN, a largest score that is infinite; a temperature that is no finite number above 0, top_p below "
    "0, min_p above 1, uniform that is not from 0 to 1, and NaN for any; an instruction set that is not there",
    holds=_largest,
)
def _draw_token(world: World) -> Arguments:
    scores = world.floats(world.rng.choice([1, 5, 1500]))
    top_p, min_p = world.rng.choice([0.0, 0.5, 0.95, 1.0]), world.rng.choice([0.0, 0.1])
    return {
        "scores": scores,
        "temperature": 0.8,
        "top_p": top_p,
        "min_p": min_p,
        "uniform": world.rng.random(),
        "isa": world.rng.choice(_native.available_isas()),
    }


@call("end_if_unbegun")
def _end_if_unbegun(world: World) -> Arguments:
    told = SimpleNamespace(err_msg=world.rng.choice([None, "Exception ignored in a callback"]), exc_type=MemoryError)
    return {"line": "Error\n", "otherwise": lambda told: None, "unraisable": told}


@call("all_finite", holds=lambda given, found: found is bool(np.isfinite(given["numbers"]).all()))
def _all_finite(world: World) -> Arguments:
    return {"numbers": world.floats(7)}


@call("lowest", "scores and states of two lengths", holds=lambda given, found: len(set(found)) == len(found) <= 3)
def _lowest(world: World) -> Arguments:
    states = world.numbers.integers(0, 3, 9, np.uint8)
    return {"scores": world.doubles(9), "states": states, "state": 2, "held": [1, 4], "count": 3}


@call(
    "rank_prefetches",
    "likelihoods of no experts, a first_key below 0, likelihoods of more keys than states",
    holds=lambda given, found: list(found[1]) == sorted(found[1], reverse=True),
)
def _rank_prefetches(world: World) -> Arguments:
    likelihood, states = world.doubles(2, 4), world.numbers.integers(0, 2, 12, np.uint8)
    return {
        "likelihood": likelihood, "num_layers": 3, "eps": 0.01, "states": states, "absent": 0, "first_key": 4,
        "at_least": 0.0, "count": 3,
    }  # fmt: skip


@call(
    "replayed_hits",
    "sizes below 0 or that do not add up to the keys, no slots",
    holds=lambda given, found: 0 <= found[0] <= found[1] <= len(given["keys"]),
)
def _replayed_hits(world: World) -> Arguments:
    keys = world.numbers.integers(0, 12, 30, np.int64)
    sizes = np.full(15, 2, np.int64)
    return {"keys": keys, "sizes": sizes, "resident": np.arange(3), "num_slots": world.rng.choice([2, 5, 20])}


def _fits(given: Arguments, found: Any) -> bool:
    """Every expert is one of the layer, and as many were changed as is said."""
    ids = given["ids"]
    return bool((ids >= 0).all() and (ids < 6).all()) and 0 <= sum(found) <= ids.size


@call(
    "substitute",
    "slices below 1 or that the states are no multiple of, arrays of other shapes, spares without weights, an id that "
    "has no state, a most_lost that is below 0, or not below 1",
    holds=_fits,
)
def _substitute(world: World) -> Arguments:
    slices, tokens = world.rng.choice([1, 2]), world.rng.choice([1, 3])
    return {
        "states": world.numbers.integers(0, 3, 6 * slices, np.uint8), "slices": slices,
        "ids": world.whole(6, tokens, 2), "weights": world.floats(tokens, 2),
        "spare_ids": world.whole(6, tokens, 3), "spare_weights": world.floats(tokens, 3),
        "keeps_sum": world.rng.random() < 0.5, "most_lost": 0.4,
    }  # fmt: skip


def _goes_on(given: Arguments, total: Any) -> bool:
    """The sum of two parts is that of both."""
    both = np.concatenate([np.arange(5, dtype=np.uint8), given["data"]])
    return given["before"] != 0 or _native.crc32c(given["data"], _native.crc32c(both[:5])) == _native.crc32c(both)


@call("crc32c", holds=_goes_on)
def _crc32c(world: World) -> Arguments:
    return {"data": world.bytes(world.rng.choice([0, 1, 100])), "before": world.rng.choice([0, 7])}


def _sums(data: Any, unit: int) -> Any:
    return np.array([_native.crc32c(data[at : at + unit]) for at in range(0, len(data), unit)], np.uint32)


@call(
    "crc32c_units",
    "a unit of 0 bytes",
    holds=lambda given, sums: bool(np.array_equal(sums, _sums(given["data"], given["unit_bytes"]))),
)
def _crc32c_units(world: World) -> Arguments:
    return {"data": world.bytes(100), "unit_bytes": world.rng.choice([1, 7, 100, 200])}


@call("crc32c_joined", "a unit of 0 bytes, sums that are not those of so many bytes")
def _crc32c_joined(world: World) -> Arguments:
    return {"sums": _sums(world.bytes(100), 30), "unit_bytes": 30, "num_bytes": 100}


def _rows(given: Arguments) -> Any:
    return given["source"].view(np.float32).reshape(given["rows"], given["cols"])


def _near(given: Arguments, _: Any) -> bool:
    rows, back = _rows(given), np.empty((given["rows"], given["cols"]), np.float32)
    _native.dequantise(given["format"], given["out"], given["rows"], given["cols"], back)
    matters = given.get("importance", np.float32(1))
    return float((matters * np.square(back - rows)).sum()) <= 0.3 * float((matters * np.square(rows)).sum())


@call(
    "quantise",
    "formats that it cannot go between, rows or columns that are no matrix of the format, bytes that are not theirs, a "
    "weight that is NaN, infinite or beyond 65504, other than one importance above 0 for each column",
    holds=_near,
)
def _quantise(world: World) -> Arguments:
    written = [(format, 256 // FORMAT_BLOCKS[format][0] * FORMAT_BLOCKS[format][1]) for format in WRITTEN]
    format, num_bytes = world.rng.choice(written)
    source = np.clip(world.floats(1, 256), -3, 3).view(np.uint8).ravel()
    out = np.zeros(num_bytes, np.uint8)
    given = {"format": format, "source": source, "source_dtype": "f32", "rows": 1, "cols": 256, "out": out}
    return given | ({"importance": np.exp(world.floats(256))} if world.rng.random() < 0.5 else {})


@call(
    "quantise_in_turn",
    "mxfp4 and formats that are not written, shapes that do not fit together, more than 256 columns, bytes that are "
    "not those of the matrix, an aim that is NaN, infinite or beyond 65504, an importance that is not above 0",
    holds=lambda given, _: bool(np.isfinite(given["errors"]).all()),
)
def _quantise_in_turn(world: World) -> Arguments:
    format = world.rng.choice([format for format in WRITTEN if format != "mxfp4"])
    count, num_bytes = FORMAT_BLOCKS[format]
    upper = np.triu(world.floats(256, 256) * np.float32(0.01))
    weights, asked = (np.clip(world.floats(2, 256), -3, 3) for _ in range(2))
    return {
        "format": format, "weights": weights, "asked": asked, "upper": upper, "importance": np.exp(world.floats(256)),
        "errors": np.empty_like(weights), "out": np.zeros(512 // count * num_bytes, np.uint8),
    }  # fmt: skip


@call("dequantise", "an unknown format, bytes that are not those of the matrix, out of another shape")
def _dequantise(world: World) -> Arguments:
    return {"format": "q6_k", "data": world.bytes(420), "rows": 2, "cols": 256, "out": world.floats(2, 256)}


@call("check_scales", "an unknown format, bytes that are not those of the matrix")
def _check_scales(world: World) -> Arguments:
    return {"format": "q8_0", "data": world.bytes(68), "rows": 2, "cols": 32}


@call("narrow_in_place", "bytes that are no whole numbers")
def _narrow_in_place(world: World) -> Arguments:
    return {"weights": world.floats(9).view(np.uint8)}


@call("repack_mxfp4", "other than 16 bytes of blocks and 17 of out for each scale")
def _repack_mxfp4(world: World) -> Arguments:
    return {"blocks": world.bytes(48), "scales": world.bytes(3), "out": world.bytes(51)}


@call("Arena", "0 bytes; MemoryError where the machine refuses")
def _arena(world: World) -> Arguments:
    return {"num_bytes": 1 << 16}


plain("Arena", "address", "num_bytes", "array")


@call("PageTaker")
def _page_taker(world: World) -> Arguments:
    return {"memory": world.get("Arena").array()}


@call("PageTaker.take", "what is not inside the memory")
def _take(world: World) -> Arguments:
    return {"start": 4096, "end": 1 << 15}


@call("PageTaker.drop")
def _drop(world: World) -> Arguments:
    return {"start": 8192}


@call("give_back")
def _give_back(world: World) -> Arguments:
    return {"memory": _native.Arena(1 << 16).array()}


@call("available_isas", holds=lambda given, found: found[-1] == "generic")
def _available_isas(world: World) -> Arguments:
    return {}
