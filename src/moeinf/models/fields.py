"""Reads config.json strictly: a missing, ill-typed or unsupported field is an error that names it."""

from __future__ import annotations

from typing import Any

from moeinf.errors import CheckpointError, UnsupportedModelError

_LARGEST = 1 << 31  # no real dimension comes near; keeps products within what Python and torch take quickly


class Fields:
    """Typed access to one JSON object. `where` names it in errors."""

    def __init__(self, values: dict[str, Any], where: str = "config.json") -> None:
        self._values = values
        self._where = where

    @property
    def where(self) -> str:
        return self._where

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def count(self, name: str, default: int | None = None, minimum: int = 1) -> int:
        """A whole number of at least `minimum`; null or absent gives the default, which if None is an error."""
        value = self._values.get(name)
        if value is None:
            if default is None:
                raise CheckpointError(f"{self._where}: {name} is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value < _LARGEST:
            raise CheckpointError(f"{self._where}: {name} is {value!r}; must be a whole number from {minimum}")
        return value

    def count_of(self, *names: str) -> int:
        """`count` of whichever of the names is there: transformers 5 renamed some fields when it saves."""
        there = [name for name in names if self._values.get(name) is not None]
        counts = [self.count(name) for name in there or names[:1]]
        if len(set(counts)) > 1:
            raise CheckpointError(f"{self._where}: {' and '.join(there)} are {counts}; they mean the same")
        return counts[0]

    def present(self, *names: str) -> None:
        """Refuses a config without these fields: which value a missing one means is not the same for all who read it.
        """
        for name in names:
            if name not in self._values:
                raise CheckpointError(f"{self._where}: {name} is missing")

    def number(self, name: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self._values.get(name)
        if value is None:
            if default is None:
                raise CheckpointError(f"{self._where}: {name} is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise CheckpointError(f"{self._where}: {name} is {value!r}; must be a positive number")
        return float(value)

    def numbers(self, name: str, count: int) -> list[float]:
        """A list of so many positive finite numbers."""
        values = self._values.get(name)
        if not isinstance(values, list) or len(values) != count:
            raise CheckpointError(f"{self._where}: {name} must be a list of {count} numbers")
        return [Fields({name: value}, self._where).number(name) for value in values]

    def within(self, name: str) -> Fields:
        """The fields of an object in this one; none where it is null or absent."""
        value = self._values.get(name) or {}
        if not isinstance(value, dict):
            raise CheckpointError(f"{self._where}: {name} is {value!r}; must be an object")
        return Fields(value, f"{self._where}: {name}")

    def layers(self, name: str) -> frozenset[int]:
        """A list of layer numbers; null or absent is none."""
        value = self._values.get(name) or []
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise CheckpointError(f"{self._where}: {name} is {value!r}; must be a list of layer numbers")
        return frozenset(value)

    def kinds(self, name: str, num_layers: int, *allowed: str) -> tuple[str, ...] | None:
        """One of `allowed` for each layer, such as layer_types; None where the field is null or absent."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != num_layers:
            raise CheckpointError(f"{self._where}: {name} must be a list with a kind for each of {num_layers} layers")
        for kind in value:
            if kind not in allowed:
                known = " or ".join(repr(a) for a in allowed)
                raise UnsupportedModelError(f"{self._where}: {kind!r} in {name} is not supported (only {known})")
        return tuple(value)

    def flag(self, name: str, default: bool) -> bool:
        """Null is no, and so an error where the default is yes."""
        value = self._values.get(name, default)
        if value is None and not default:
            return False
        if not isinstance(value, bool):
            raise CheckpointError(f"{self._where}: {name} is {value!r}; must be true or false")
        return value

    def only(self, name: str, *allowed: Any) -> None:
        """Refuses a value that would change the mathematics in a way this architecture's code does not follow."""
        value = self._values.get(name)
        if value not in allowed:
            known = " or ".join(repr(a) for a in allowed if a is not None)
            raise UnsupportedModelError(f"{self._where}: {name} = {value!r} is not supported (only {known or 'null'})")

    def refuse_others(self, *known: str) -> None:
        """Refuses every field but these: for objects of which each field changes the mathematics."""
        for name, value in self._values.items():
            if name not in known and value is not None:
                raise UnsupportedModelError(f"{self._where}: {name} = {value!r} is not supported")
