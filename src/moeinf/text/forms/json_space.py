"""How much space an answer of JSON may hold between its texts: some models write it for ever where JSON allows it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

_FREE = 32  # characters of space that every answer may hold; beyond them there is one for each other character
_SPACE = re.compile(rb"[ \t\n\r]")
Place = Literal["between", "text", "escape"]  # of a byte in JSON: between texts, in one, or behind its backslash
_PLACES: tuple[Place, ...] = ("between", "text", "escape")


class AnswerStart(NamedTuple):
    """Where in what a model writes its JSON begins. Tokens that are no letters stand as `token_name` writes them.

    opens: what a lead begins with that may be left out; b"" for one that is there. closes: what it ends with; b"" where
    there is none. calls: beginnings of an answer that is no JSON.
    """

    opens: bytes = b""
    closes: bytes = b""
    calls: tuple[bytes, ...] = ()


def token_name(token: int) -> bytes:
    """What a token that is no letters is written as: no text holds the byte 255."""
    return b"\xff[%d]" % token


class JsonSpace:
    """Counts the space of one answer."""

    def __init__(self, start: AnswerStart) -> None:
        self._opens, self._closes, self._calls = start
        self._lead: bytes | None = b"" if self._closes else None  # None behind it
        self._begun: bytes | None = b"" if self._calls else None  # of the answer, while it may be a call
        self.place: Place = "between"
        self._num_space = self._num_other = 0

    @property
    def spent(self) -> bool:
        """Whether there has been enough."""
        return self._num_space >= _FREE + self._num_other

    def take(self, written: bytes) -> None:
        """Goes on behind what a token stands for."""
        if self._lead is not None:
            written = self._behind_lead(self._lead, written)
        if self._begun is not None:
            self._begun = (self._begun + written).lstrip()
            if self._begun.startswith(self._calls):
                self._begun, self._num_other = None, 1 << 60  # what a call holds is free
            elif not any(call.startswith(self._begun) for call in self._calls):
                self._begun = None
        num_space, self.place = space_between(written, self.place)
        self._num_space += num_space
        self._num_other += len(written) - num_space

    def _behind_lead(self, lead: bytes, written: bytes) -> bytes:
        """The part of what a token stands for that is behind the lead."""
        whole = lead + written
        if not whole.startswith(self._opens) and not self._opens.startswith(whole):
            self._lead = None
            return whole
        end = whole.find(self._closes, max(len(self._opens), len(lead) - len(self._closes)))
        self._lead = whole if end < 0 else None
        return b"" if end < 0 else whole[end + len(self._closes) :]


def space_between(written: bytes, place: Place) -> tuple[int, Place]:
    """How much of some JSON is space between its texts, and where it ends, if it begins at `place`."""
    if place == "between" and b'"' not in written:
        return len(_SPACE.findall(written)), place
    if place == "text" and b'"' not in written and b"\\" not in written:
        return 0, place
    count = 0
    for byte in written:
        if place == "escape":
            place = "text"
        elif place == "text":
            place = "escape" if byte == 0x5C else "between" if byte == 0x22 else "text"
        elif byte == 0x22:
            place = "text"
        else:
            count += byte in b" \t\n\r"
    return count, place


class SpaceTokens:
    """Which tokens of a vocabulary write space between texts."""

    def __init__(self, letters: Sequence[bytes]) -> None:
        """letters: what each token stands for, b"" for those that are no letters. Takes half a second for 200,000."""
        spaced = [(token, written) for token, written in enumerate(letters) if _SPACE.search(written)]
        self._bits = dict[Place, int]()
        for place in _PLACES:
            bits = bytearray(-(-len(letters) // 8))
            for token, written in spaced:
                if space_between(written, place)[0]:
                    bits[token >> 3] |= 1 << (token & 7)
            self._bits[place] = int.from_bytes(bits, "little")

    def without(self, mask: bytes, place: Place) -> bytes:
        """A mask of tokens without them; the same where no other token may come."""
        left = int.from_bytes(mask, "little") & ~self._bits[place]
        return left.to_bytes(len(mask), "little") if left else mask
