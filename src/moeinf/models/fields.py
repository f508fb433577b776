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
        """`count` of the first of the names that is there: transformers 5 renamed some fields when it saves."""
        return self.count(next((name for name in names if self._values.get(name) is not None), names[0]))

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

    def layers(self, name: str) -> frozenset[int]:
        """A list of layer numbers; null or absent is none."""
        value = self._values.get(name) or []
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise CheckpointError(f"{self._where}: {name} is {value!r}; must be a list of layer numbers")
        return frozenset(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise CheckpointError(f"{self._where}: {name} is {value!r}; must be true or false")
        return value

    def only(self, name: str, *allowed: Any) -> None:
        """Refuses a value that would change the mathematics in a way this architecture's code does not follow."""
        value = self._values.get(name)
        if value not in allowed:
            known = " or ".join(repr(a) for a in allowed if a is not None)
            raise UnsupportedModelError(f"{self._where}: {name} = {value!r} is not supported (only {known or 'null'})")


def rope_theta(fields: Fields, default: float) -> float:
    """The base of rotary positions, from either place where transformers keeps it.

    Raises UnsupportedModelError for any scaling: only plain rotary positions are computed.
    """
    for name in ("rope_parameters", "rope_scaling"):
        value = fields.get(name)
        if value is None:
            continue
        if not isinstance(value, dict):
            raise CheckpointError(f"config.json: {name} is {value!r}; must be an object")
        scaling = Fields(value, f"config.json: {name}")
        kind = value.get("rope_type", value.get("type", "default"))
        if kind != "default":
            raise UnsupportedModelError(f"config.json: {name} of type {kind!r} is not supported (only 'default')")
        if "rope_theta" in value:
            return scaling.number("rope_theta")
    return fields.number("rope_theta", default)
