"""What a sound argument is turned into: another value, type, shape or memory."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import numpy as np

FLOATS = (math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-45, 1e-40, 3e38, -3e38, 1e39, 1.7e308, -1.0, 1e-300)
INTEGERS = (
    0, 1, -1, 2, 3, 7, 63, 64, 65, 4095, 4096, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**53, 2**61,
    2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**31), -(2**63), 10**30,
)  # fmt: skip
TEXTS = (
    "",
    "x",
    "f32",
    "bf16",
    "q8_0",
    "q4_k",
    "q6_k",
    "iq1_m",
    "nvfp4",
    "generic",
    "a" * 100_000,
    "\0",
    "\udcff",
    "ö",
)
OTHERS: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    "x",
    b"bytes",
    [],
    {},
    object(),
    lambda *_: None,
    np.float32(1),
    np.zeros(3),
)


def mutated(value: Any, rng: random.Random, others: dict[str, Any]) -> Any:
    """others: all arguments of the call, whose memory this one may share."""
    if rng.random() < 0.05:
        return rng.choice(OTHERS)
    if isinstance(value, np.ndarray):
        return _array(value, rng, others)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((*INTEGERS, value - 1, value + 1, 2 * value))
    if isinstance(value, float):
        return rng.choice(FLOATS)
    if isinstance(value, str):
        return rng.choice(TEXTS)
    if isinstance(value, (list, tuple)):
        return type(value)(_sequence(list(value), rng, others))
    if isinstance(value, dict):
        return _mapping(value, rng, others)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        name = rng.choice([each.name for each in dataclasses.fields(value)])
        return dataclasses.replace(value, **{name: mutated(getattr(value, name), rng, others)})
    return rng.choice((*OTHERS, *others.values()))


def _sequence(value: list[Any], rng: random.Random, others: dict[str, Any]) -> list[Any]:
    kind = rng.randrange(6)
    if kind == 0 or not value:
        return rng.choice(([], [0], [-1], [2**40], [0] * 1000, value * 2))
    at = rng.randrange(len(value))
    if kind == 1:
        return value[:at] + value[at + 1 :]
    if kind == 2:
        return [*value, value[at]]
    return [*value[:at], mutated(value[at], rng, others), *value[at + 1 :]]


def _mapping(value: dict[Any, Any], rng: random.Random, others: dict[str, Any]) -> dict[Any, Any]:
    name = rng.choice(list(value))
    kind = rng.randrange(5)
    if kind == 0:
        return {each: given for each, given in value.items() if each != name}
    if kind == 1:
        return {**value, rng.choice(["gate", "up_bias", "x", ""]): value[name]}
    return {**value, name: mutated(value[name], rng, others)}


def _array(value: Any, rng: random.Random, others: dict[str, Any]) -> Any:
    kind = rng.randrange(12)
    if kind < 5:
        return _other_values(value, rng)
    if kind < 8:
        return _other_shape(value, rng)
    if kind == 8:
        return value.astype(rng.choice(["f2", "f4", "f8", "i4", "i8", "u1", "u4", "?", "c8", "O", ">f4", ">i8", "S3"]))
    if kind == 9:  # neither contiguous, nor what may be written
        apart = np.repeat(value, 2, -1)[..., ::2] if value.ndim else value
        fixed = value.copy()
        fixed.flags.writeable = False
        return rng.choice((apart, fixed, value[::-1] if value.ndim else value, value.T, np.asfortranarray(value)))
    return _shared(value, rng, others)


def _other_values(value: Any, rng: random.Random) -> Any:
    """A copy, some numbers of which are others; now and then all of them."""
    changed = value.copy()
    if not changed.size:
        return changed
    flat = changed.reshape(-1)
    places = slice(None) if rng.random() < 0.15 else [rng.randrange(flat.size) for _ in range(rng.choice([1, 1, 3]))]
    if flat.dtype.kind == "f":
        with np.errstate(all="ignore"):
            flat[places] = np.array(rng.choice(FLOATS)).astype(flat.dtype)
    else:
        limits = np.iinfo(flat.dtype)
        flat[places] = rng.choice(
            [each for each in (*INTEGERS, limits.min, limits.max) if limits.min <= each <= limits.max]
        )
    return changed


def _other_shape(value: Any, rng: random.Random) -> Any:
    shape = list(value.shape)
    if not shape:
        return value.reshape(1)
    kind, at = rng.randrange(6), rng.randrange(len(shape))
    if kind == 0:
        shape[at] = 0
    elif kind == 1:
        shape[at] = max(0, shape[at] + rng.choice([-1, 1, -2, 2]))
    elif kind == 2:  # huge, and without memory
        shape[at] = 0
        other = rng.randrange(len(shape))
        if other != at:
            shape[other] = rng.choice([2**31, 2**32, 2**40, 2**50])
    elif kind == 3:
        shape.insert(at, rng.choice([0, 1, 2]))
    elif kind == 4:
        del shape[at]
    else:
        shape = shape[::-1]
    return np.resize(value, shape) if value.size and 0 not in shape else np.zeros(shape, value.dtype)


def _shared(value: Any, rng: random.Random, others: dict[str, Any]) -> Any:
    """Of the same shape and type, in the memory of another argument."""
    for other in rng.sample(list(others.values()), len(others)):
        if (
            isinstance(other, np.ndarray)
            and other.dtype.kind != "O"
            and other.flags.c_contiguous
            and other.nbytes >= value.nbytes
            and value.nbytes
        ):
            start = rng.choice([0, other.nbytes - value.nbytes]) // value.itemsize * value.itemsize
            return other.reshape(-1).view(np.uint8)[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    return value
