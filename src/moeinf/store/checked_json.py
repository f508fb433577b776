"""Checked access to the JSON of a manifest: whatever passes is of the type and form that its reader asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import cast

from moeinf.errors import StoreError
from moeinf.types import DTYPE_BYTES, FORMAT_BLOCKS, DType, Format, Json, JsonObject, block_of

LARGEST = 1 << 62  # of a size or offset


class CheckedObject:
    """Checked access to one JSON object; every error names the file and the field."""

    def __init__(self, values: JsonObject, where: str) -> None:
        self._values = values
        self.where = where
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def take(self, name: str, kind: type) -> Json:
        self._taken.add(name)
        value = self._values.get(name)
        if type(value) is not kind:
            raise self.error(name, "is missing" if name not in self._values else f"is not of type {kind.__name__}")
        return value

    def number(self, name: str, minimum: int = 0) -> int:
        value: int = self.take(name, int)
        if not minimum <= value <= LARGEST:
            raise self.error(name, f"is {value}; must be a whole number from {minimum}")
        return value

    def text(self, name: str, pattern: re.Pattern[str] | None = None) -> str:
        value: str = self.take(name, str)
        if not value.isprintable() or (pattern and not pattern.fullmatch(value)):
            raise self.error(name, f"is {value[:100]!r}, which is not allowed")
        return value

    def dtype(self) -> DType:
        value = self.text("dtype")
        if value not in DTYPE_BYTES:
            raise self.unknown("dtype", value, DTYPE_BYTES)
        return cast(DType, value)

    def format(self, name: str, *, whole: bool = False) -> Format:
        """whole: whether it may be one of whole numbers."""
        value = self.text(name)
        if value not in FORMAT_BLOCKS and not (whole and value == "i32"):
            raise self.unknown(name, value, FORMAT_BLOCKS)
        return cast(Format, value)

    def shape(self, format: Format) -> tuple[int, ...]:
        """Reads the shape of a tensor in this format: positive whole numbers, and rows of whole blocks."""
        shape = self.take("shape", list)
        if not all(type(size) is int and 0 < size < 1 << 31 for size in shape) or not 1 <= len(shape) <= 8:
            raise self.error("shape", f"is {str(shape)[:100]}; must be positive whole numbers")
        weights = block_of(format)[0]
        if shape[-1] % weights:
            raise self.error("shape", f"is {shape}; rows must be whole {format} blocks of {weights}")
        return tuple(shape)

    def names(self) -> list[str]:
        for name in self._values:
            if not name or not name.isprintable():
                raise self.error(ascii(name[:100]), "is not a name")
        return list(self._values)

    def child(self, name: str) -> CheckedObject:
        return CheckedObject(self.take(name, dict), f"{self.where}: {name}")

    def children(self, name: str) -> list[CheckedObject]:
        items = self.take(name, list)
        if not all(type(item) is dict for item in items):
            raise self.error(name, "is not a list of objects")
        return [CheckedObject(item, f"{self.where}: {name}[{i}]") for i, item in enumerate(items)]

    def nothing_else(self) -> None:
        for name in self._values.keys() - self._taken:
            raise self._of_later(str(name)[:100], "is not known to this version")

    def error(self, name: str, fault: str) -> StoreError:
        return StoreError(f"{self.where}: {name} {fault}; pull it again")

    def unknown(self, name: str, value: str, known: Iterable[str]) -> StoreError:
        return self._of_later(name, f"is {value[:100]!r}; known: {', '.join(known)}")

    def _of_later(self, name: str, fault: str) -> StoreError:
        """Of what a later version may know."""
        return StoreError(f"{self.where}: {name} {fault}; upgrade moeinf if a newer one made it, else pull it again")
