"""The table of what moeinf._native binds: how each call is made soundly, what it refuses, and with which error.

A row serves three readers: a person who asks what a function refuses, tests/fuzz/native_calls.py, which mutates the
sound arguments, and a test that fails for a name that is bound and not here. TypeError, for an argument of another
type or shape than the signature has, and MemoryError are not written down: every call may raise them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from moeinf import _native

Arguments = dict[str, Any]
Errors = tuple[type[BaseException], ...]


@dataclass(frozen=True)
class Row:
    name: str  # "draw_token", "Kernels" for its constructor, "Kernels.linear"
    refuses: str  # what is a ValueError, unless another error is named; "" for a call that refuses nothing
    arguments: Callable[[World], Arguments]  # sound ones
    errors: Errors
    holds: Callable[[Arguments, Any], bool] | None  # whether what sound arguments have given is right
    tried: Mapping[str, tuple[Any, ...]]  # of these arguments no other values; of addresses, which nothing checks, none

    @property
    def of_class(self) -> str | None:
        return self.name.partition(".")[0] if "." in self.name else None


ROWS: dict[str, Row] = {}


def call(
    name: str,
    refuses: str = "",
    *errors: type[BaseException],
    holds: Callable[[Arguments, Any], bool] | None = None,
    tried: Mapping[str, tuple[Any, ...]] = {},
) -> Callable[[Callable[[World], Arguments]], Callable[[World], Arguments]]:
    """Decorates what makes sound arguments. errors: what is raised beside ValueError, where something is refused."""

    def take(arguments: Callable[[World], Arguments]) -> Callable[[World], Arguments]:
        assert name not in ROWS, name
        raised: Errors = (ValueError, *errors) if refuses else errors
        ROWS[name] = Row(name, refuses, arguments, raised, holds, tried)
        return arguments

    return take


def plain(of_class: str, *names: str, refuses: str = "", errors: Errors = ()) -> None:
    """Attributes, and methods without arguments."""
    for name in names:
        call(f"{of_class}.{name}", refuses, *errors)(lambda world: {})


@dataclass
class World:
    """What the calls of a case share: random sizes, and one object of each class, made when it is asked for.

    It lets go of them at its end: a callback that knows the world is held by objects of the world, and Python's
    collector does not look into native ones.
    """

    rng: random.Random
    folder: Path  # of its own
    made: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.numbers = np.random.default_rng(self.rng.randrange(2**32))
        self.tokens = self.rng.choice([1, 1, 2, 3, 9, 17])
        self.hidden = self.rng.choice([32, 64])
        self.memory: dict[str, Any] = {}  # arrays that objects share

    def __enter__(self) -> World:
        return self

    def __exit__(self, *raised: object) -> None:
        self.made.clear()
        self.memory.clear()

    def get(self, name: str) -> Any:
        """The object of this class."""
        if name not in self.made:
            self.made[name] = getattr(_native, name)(**ROWS[name].arguments(self))
        return self.made[name]

    def kept(self, name: str, make: Callable[[], Any]) -> Any:
        """The same array, or what else it is, for every object."""
        return self.memory.setdefault(name, make()) if name not in self.memory else self.memory[name]

    def floats(self, *shape: int) -> Any:
        return self.numbers.normal(size=shape).astype(np.float32)

    def doubles(self, *shape: int) -> Any:
        return self.numbers.random(shape)

    def bytes(self, count: int) -> Any:
        return self.numbers.integers(0, 256, count, np.uint8)

    def whole(self, most: int, *shape: int) -> Any:
        """int64 from 0 to most - 1."""
        return self.numbers.integers(0, most, shape)

    def distinct(self, most: int, count: int) -> Any:
        return self.numbers.permutation(most)[:count].astype(np.int64)

    def matrix(self, rows: int, cols: int, *formats: str) -> Any:
        from moeinf.types import FORMAT_BLOCKS
        from tests.support.blocks import even_blocks

        possible = [f for f in formats or FORMAT_BLOCKS if cols % FORMAT_BLOCKS[f][0] == 0]  # type: ignore[index]
        chosen = self.rng.choice(possible)
        if FORMAT_BLOCKS[chosen][0] == 1:  # type: ignore[index]
            wide = self.floats(rows * cols)
            narrow = {
                "f32": wide,
                "f16": wide.astype(np.float16),
                "bf16": (wide.view(np.uint32) >> 16).astype(np.uint16),
            }
            data = narrow[chosen].view(np.uint8)
        else:
            data = even_blocks(chosen, rows * cols // FORMAT_BLOCKS[chosen][0], self.numbers).ravel()  # type: ignore[arg-type,index]
        return _native.Matrix(np.ascontiguousarray(data), chosen, rows, cols)
