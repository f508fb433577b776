"""Reads config.json strictly: a missing, ill-typed or unsupported field is an error that names it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.types import Json, JsonObject, MoeShape

# No real checkpoint comes near these. They bound what a config.json of a kilobyte can make of a plan: time and memory.
MOST_LAYERS = 1000
_MOST_EXPERTS = 100_000  # of all layers
_LARGEST = (1 << 31) - 1  # of any other count
_NUMBERS = (1e-21, 1e15)  # products and powers of a few of them stay finite
_LAYER_TYPES = {  # what published checkpoints call kinds of layer_types, by the names that transformers gives them now
    "mamba": "linear_attention",
    "attention": "full_attention",
    "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention",
}


class Fields:
    """Typed access to one JSON object. `where` names it in errors."""

    def __init__(self, values: JsonObject, where: str = "config.json", called: Mapping[str, str] | None = None) -> None:
        """called: of fields that the object has under another name, that name."""
        self._values = values
        self._where = where
        self._called = called or {}

    def name_of(self, name: str) -> str:
        """What the object calls a field."""
        return self._called.get(name, name)

    def said(self, name: str) -> str:
        """What errors call a field: by the object, and by its name in that."""
        return f"{self._where}: {self.name_of(name)}"

    @property
    def where(self) -> str:
        return self._where

    def __contains__(self, name: str) -> bool:
        """Whether the field is there, be it null."""
        return name in self._values

    @property
    def names(self) -> list[str]:
        return list(self._values)

    @property
    def plain(self) -> JsonObject:
        """A copy of the object."""
        return dict(self._values)

    def replaced(self, **values: Any) -> Fields:
        """The same object with these values in place of its own."""
        return Fields({**self._values, **values}, self._where, self._called)

    def renamed(self, called: Mapping[str, str]) -> Fields:
        """The same object, where errors are to call fields by the names that it has them under."""
        return Fields(self._values, self._where, {**self._called, **called})

    def get(self, name: str) -> Json:
        return self._values.get(name)

    def count(self, name: str, default: int | None = None, minimum: int = 1, maximum: int = _LARGEST) -> int:
        """A whole number within the bounds; null or absent gives the default, which if None is an error."""
        value = self._values.get(name)
        if value is None:
            if default is None:
                raise CheckpointError(f"{self.said(name)} is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise CheckpointError(
                f"{self.said(name)} is {value!r:.100}; must be a whole number from {minimum} to {maximum}"
            )
        return value

    def count_of(self, *names: str, maximum: int = _LARGEST) -> int:
        """`count` of whichever of the names is there: transformers 5 renamed some fields when it saves."""
        there = [name for name in names if self._values.get(name) is not None]
        if not there and len(names) > 1:
            raise CheckpointError(f"{self.said(names[0])} (or {', '.join(names[1:])}) is missing")
        counts = [self.count(name, maximum=maximum) for name in there or names[:1]]
        if len(set(counts)) > 1:
            raise CheckpointError(f"{self._where}: {' and '.join(there)} are {counts}; they mean the same")
        return counts[0]

    def counts(self, name: str, length: int, maximum: int = _LARGEST) -> list[int]:
        """A list of so many whole numbers, from 0 on."""
        values = self._values.get(name)
        if not isinstance(values, list) or len(values) != length:
            raise CheckpointError(f"{self.said(name)} must be a number, or a list of {length}")
        return [
            Fields({name: value}, self._where, self._called).count(name, minimum=0, maximum=maximum) for value in values
        ]

    def present(self, *names: str) -> None:
        """Refuses a config without these fields: readers differ in the value that a missing one means."""
        for name in names:
            if name not in self._values:
                raise CheckpointError(f"{self.said(name)} is missing")

    def number(self, name: str, default: float | None = None, *, zero: bool = False) -> float:
        """A positive number of a size that occurs; zero: or 0."""
        value = self._values.get(name)
        if value is None:
            if default is None:
                raise CheckpointError(f"{self.said(name)} is missing")
            return default
        low, high = _NUMBERS
        sound = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not sound or not (low <= value <= high or (zero and value == 0)):
            also = "0, or " if zero else ""
            raise CheckpointError(f"{self.said(name)} is {value!r:.100}; must be {also}a number from {low} to {high}")
        return float(value)

    def numbers(self, name: str, count: int, *, zero: bool = False) -> list[float]:
        """A list of so many numbers as `number` takes them."""
        values = self._values.get(name)
        if not isinstance(values, list) or len(values) != count:
            raise CheckpointError(f"{self.said(name)} must be a list of {count} numbers")
        return [Fields({name: value}, self._where, self._called).number(name, zero=zero) for value in values]

    def within(self, name: str) -> Fields:
        """The fields of an object in this one; none where it is null or absent."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, dict):
            raise CheckpointError(f"{self.said(name)} is {value!r:.100}; must be an object")
        return Fields(value or {}, f"{self.said(name)}")

    def layers(self, name: str) -> frozenset[int]:
        """A list of layer numbers; null or absent is none."""
        value = self._values.get(name)
        value = [] if value is None else value
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise CheckpointError(f"{self.said(name)} is {value!r:.100}; must be a list of layer numbers")
        return frozenset(value)

    def kinds(self, name: str, num_layers: int, *allowed: str) -> tuple[str, ...] | None:
        """One of `allowed` for each layer, such as layer_types; None where the field is null or absent.

        Older names of layer_types are given as the newer ones, unless `allowed` has them.
        """
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != num_layers:
            raise CheckpointError(
                f"{self.said(name)} must be a list with a kind for each of {num_layers} layers (num_hidden_layers)"
            )
        newer = _LAYER_TYPES if name == "layer_types" else {}
        found = []
        for said in value:
            kind = said if said in allowed or not isinstance(said, str) else newer.get(said, said)
            if kind not in allowed:
                known = " or ".join(repr(a) for a in allowed)
                raise UnsupportedModelError(f"{self._where}: {said!r:.100} in {name} is not supported (only {known})")
            found.append(kind)
        return tuple(found)

    def flag(self, name: str, default: bool) -> bool:
        """Null is no, and so an error where the default is yes."""
        value = self._values.get(name, default)
        if value is None and not default:
            return False
        if not isinstance(value, bool):
            raise CheckpointError(f"{self.said(name)} is {value!r:.100}; must be true or false")
        return value

    def only(self, name: str, *allowed: Any) -> None:
        """Refuses a value that would change the mathematics in a way this architecture's code does not follow."""
        value = self._values.get(name)
        if value not in allowed:
            known = " or ".join(repr(a) for a in allowed if a is not None)
            raise UnsupportedModelError(f"{self.said(name)} = {value!r:.100} is not supported (only {known or 'null'})")

    def fixed(self, **values: Any) -> None:
        """Refuses fields with other values than the one that each has in this architecture; null is that, too."""
        for name, value in values.items():
            self.only(name, value, None)

    def refuse_others(self, *known: str) -> None:
        """Refuses every field but these: for objects of which each field changes the mathematics."""
        for name, value in self._values.items():
            if name not in known and value is not None:
                raise UnsupportedModelError(f"{self.said(name)} = {value!r:.100} is not supported")


def moe_shape(
    num_layers: int, num_experts: int, top_k: int, counts: Sequence[int] = (), named: Sequence[str] = ()
) -> MoeShape:
    """counts: of the experts of each layer, where they may differ; named: the fields that say how many there are, and
    how many a token uses. Raises CheckpointError for what no model has."""
    fewest = min(counts, default=num_experts)
    if top_k > fewest:
        raise CheckpointError(
            f"config.json: a token cannot use {top_k} of {fewest} experts ({', '.join(named or ('num_experts',))})"
        )
    if num_layers * num_experts > _MOST_EXPERTS:
        raise CheckpointError(
            f"config.json: {num_experts} experts in each of {num_layers} layers are more than the "
            f"{_MOST_EXPERTS} in all that moeinf takes"
        )
    return MoeShape(num_layers, num_experts, top_k, tuple(counts) if len(set(counts)) > 1 else ())


def routed_shape(
    f: Fields, names: tuple[str, ...], top_k: int, num_layers: int, moe_layers: Sequence[int] | None = None
) -> MoeShape:
    """The shape of a decoder. names: those of the field that counts experts, of which the first is the family's own.

    It is a number, or a list with one for each of num_layers decoder layers, as a pruned model may have it: 0 where
    there are none. moe_layers: the decoder layers that have experts; without them all have.
    """
    layers = range(num_layers) if moe_layers is None else moe_layers
    there = [name for name in names if isinstance(f.get(name), list)]
    if not there:
        return moe_shape(len(layers), f.count_of(*names), top_k, named=_of_experts(f, names, top_k))
    counts = f.counts(there[0], num_layers)
    for name in names:
        if f.get(name) is not None and f.get(name) != counts:
            raise CheckpointError(f"{f.where}: {there[0]} and {name} differ; they mean the same")
    for layer, count in enumerate(counts):
        if (count > 0) != (layer in layers):
            has = "has experts" if layer in layers else "has none"
            raise CheckpointError(f"{f.where}: {there[0]} is {count} in layer {layer}, which {has}")
    named = _of_experts(f, names, top_k)
    return moe_shape(len(layers), max(counts), top_k, [counts[layer] for layer in layers], named)


def _of_experts(f: Fields, names: Sequence[str], top_k: int) -> list[str]:
    """Which fields say how many experts there are, and how many a token uses."""
    used = [name for name in f.names if f.get(name) == top_k and re.search("per_tok|top_?k|_k$", name)]
    return [f.name_of(name) for name in (*used, *names) if f.get(name) is not None]
