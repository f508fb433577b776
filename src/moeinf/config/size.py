"""Sizes as users write them: `6GiB`, `500MB`, `1073741824` or `40%`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from moeinf.errors import UsageError

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)}
_UNITS |= {f"{letter}{suffix}": 1024**power for power, letter in enumerate("kmgt", start=1) for suffix in ("", "ib")}
_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a memory, or of all experts, whose size is known only later."""

    percent: float

    def of(self, total_bytes: int) -> int:
        """Its bytes."""
        return int(total_bytes * self.percent / 100)

    def __str__(self) -> str:
        return f"{self.percent:g}%"


@dataclass(frozen=True, slots=True)
class Bytes:
    """So many bytes, however much there is."""

    num_bytes: int
    text: str = field(default="", compare=False)  # as the user wrote it

    def of(self, total_bytes: int) -> int:
        """Its bytes."""
        return self.num_bytes

    def __str__(self) -> str:
        return self.text or f"{self.num_bytes}B"


Size = Share | Bytes


def parse_size(option: str, text: str) -> Size | None:
    """The size that a text means; None for `auto`. Raises UsageError, which names the option.

    A small number alone is refused: it would mean a few bytes, and those who are used to llama.cpp mean MiB.
    """
    if text == "auto":
        return None
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d+)?)\s*(%|[a-zA-Z]*)\s*", text)
    number, unit = (match[1], match[2].lower()) if match else ("", "?")
    if unit == "%" and float(number) <= 100:
        return Share(float(number))
    if unit == "" and 0 < float(number) < _MEBIBYTE:
        raise UsageError(f"{option} {text!r} may mean {number} MiB or {number} bytes; write {number}MiB or {number}B")
    if unit in _UNITS:
        return Bytes(int(float(number) * _UNITS[unit]), text)
    raise UsageError(f"{option} {text!r} is not a size; write auto, bytes (6GiB, 500MB) or percent (40%)")


def size_of(option: str, name: str, value: object) -> Size | None:
    """The size that Python code gave for a field: a size, its text, or a number of bytes. Raises UsageError."""
    if isinstance(value, Share | Bytes):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        value = f"{value}B"
    if not isinstance(value, str):
        raise UsageError(f"{name} must be text such as '6GiB' or '40%', or a number of bytes, not {value!r}")
    return parse_size(option, value)
