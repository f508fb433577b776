"""Text that knows of each of its characters who wrote it, through all that a chat template does to it.

Only control tokens that a template wrote itself are control tokens; those of anybody else are their letters, also where
they come together from several texts. What an operation does not follow counts as given: it becomes letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import SupportsIndex

OWN = "o"  # written by the template, or by moeinf
GIVEN = "g"  # by a client, or by nobody knows whom
BEGUN = "b"  # given as well: the beginning of the answer
# Stands behind the first character of a control token that the template did not write, so that the tokenizer does not
# take it for one. A noncharacter: it cannot occur in interchanged text, and is removed from what clients give.
MARK = "\ufdd0"


class Traced(str):
    """A str, equal to one without origins, whose methods keep them."""

    _origins: str  # as many characters as the text has: who wrote each

    def __new__(cls, text: str = "", origin: str = GIVEN) -> Traced:
        """origin: of all characters, or one for each."""
        made = super().__new__(cls, text)
        made._origins = origin * len(made) if len(origin) == 1 else origin
        return made

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> Traced:
        return traced_concat((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> Traced:
        return traced_concat((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> Traced:
        return _traced(super().__mul__(count), self._origins * count)

    __rmul__ = __mul__

    def __getitem__(self, place: SupportsIndex | slice) -> Traced:
        return _traced(super().__getitem__(place), self._origins[place])

    def __iter__(self) -> Iterator[Traced]:
        return map(_traced, super().__iter__(), self._origins)

    def join(self, parts: Iterable[str]) -> Traced:
        return traced_concat(_between(self, parts))

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> Traced:
        if not old:
            return Traced(super().replace(old, new, count))
        return traced_concat(_between(new, self.split(old, count)))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Traced]:  # type: ignore[override]
        return self._found(super().split(sep, maxsplit), len(sep or ""))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Traced]:  # type: ignore[override]
        return self._found(super().rsplit(sep, maxsplit), len(sep or ""))

    def splitlines(self, keepends: bool = False) -> list[Traced]:  # type: ignore[override]
        whole = self._found(super().splitlines(True), 0)
        return whole if keepends else [line[: len(str.splitlines(line)[0])] for line in whole]

    def partition(self, sep: str) -> tuple[Traced, Traced, Traced]:
        first, found, last = self._found(super().partition(sep), 0)
        return first, found, last

    def rpartition(self, sep: str) -> tuple[Traced, Traced, Traced]:
        first, found, last = self._found(super().rpartition(sep), 0)
        return first, found, last

    def _found(self, parts: Iterable[str], num_between: int) -> list[Traced]:
        """The parts, which come one behind another in the text, with what lies between them."""
        found, at = list[Traced](), 0
        for part in parts:
            at = self.find(part, at)
            found.append(self[at : at + len(part)])
            at += len(part) + num_between
        return found

    def strip(self, chars: str | None = None) -> Traced:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None) -> Traced:
        return self[len(self) - len(super().lstrip(chars)) :]

    def rstrip(self, chars: str | None = None) -> Traced:
        return self[: len(super().rstrip(chars))]

    def removeprefix(self, prefix: str) -> Traced:
        return self[len(prefix) :] if prefix and self.startswith(prefix) else self

    def removesuffix(self, suffix: str) -> Traced:
        return self[: -len(suffix)] if suffix and self.endswith(suffix) else self

    def upper(self) -> Traced:
        return self._alike(super().upper())

    def lower(self) -> Traced:
        return self._alike(super().lower())

    def title(self) -> Traced:
        return self._alike(super().title())

    def capitalize(self) -> Traced:
        return self._alike(super().capitalize())

    def _alike(self, text: str) -> Traced:
        return _traced(text, self._origins) if len(text) == len(self) else Traced(text)


def origins_of(text: str) -> str:
    """Who wrote each character."""
    return text._origins if isinstance(text, Traced) else GIVEN * len(text)


def traced_concat(parts: Iterable[object]) -> Traced:
    listed = [part if isinstance(part, str) else str(part) for part in parts]
    return _traced("".join(listed), "".join(map(origins_of, listed)))


def _traced(text: str, origins: str) -> Traced:
    made = Traced(text)
    made._origins = origins
    return made


def _between(new: str, parts: Iterable[str]) -> Iterator[str]:
    for at, part in enumerate(parts):
        yield from (new, part) if at else (part,)


def alternatives(tokens: Sequence[str]) -> re.Pattern[str] | None:
    """What finds any of these control tokens, the longest first."""
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if tokens else None
