"""A dataclass as one of a class that is derived from its own."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def widened(kind: type[T], value: Any, **more: Any) -> T:
    """value: an instance of a dataclass that `kind` is derived from; more: the fields that `kind` adds."""
    return kind(**{field.name: getattr(value, field.name) for field in fields(value)}, **more)
