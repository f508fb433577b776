"""Turns token ids into text as they come, also where a character is split over several tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

# Stands in a stream's text before each token that it was told to mark, so that its letters are not taken for it.
# A noncharacter: models do not write it, and one that does gets U+FFFD instead.
TOKEN_MARK = "\ufdd1"
# Stand in a stream's text for control tokens that it was told to tell of. Noncharacters, too.
STAND_INS = tuple(map(chr, range(0xFDD2, 0xFDF0)))
_NO_MARKS = dict.fromkeys(map(ord, (TOKEN_MARK, *STAND_INS)), "\ufffd")


@dataclass(frozen=True, slots=True)
class CallPart:
    """A part of a tool call, which comes in several.

    index: which call of the answer, from 0. name: of the tool, in the first part alone; None in the others.
    arguments: a fragment; those of one call, joined, are the text of one JSON object. Where the answer was cut in the
    middle of a call, or the model broke off, they are the beginning of one.
    """

    index: int
    name: str | None
    arguments: str


class Piece(NamedTuple):
    """Some text of an answer, or of what was thought before it, or a part of a tool call, which has no text."""

    text: str
    thought: bool = False
    call: CallPart | None = None


def stand_ins(control: Sequence[str], stops: Sequence[str]) -> dict[str, str]:
    """A character for each of these control tokens that is a part of a text at which an answer is to end."""
    return dict(zip([token for token in control if any(token in stop for stop in stops)], STAND_INS, strict=False))


class TokenStream:
    """Turns token ids into text, and holds back what may be the middle of a character."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        context: list[int],
        *,
        skip_special: bool,
        marked: Mapping[int, str] | None = None,
        told: Mapping[int, str] | None = None,
    ) -> None:
        """marked: tokens that come out as TOKEN_MARK and their text, special ones too. told: special tokens that come
        out as one of STAND_INS."""
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._marked, self._told = marked or {}, told or {}
        self._held: list[int] = []
        self._restart(context)

    def _restart(self, context: list[int]) -> None:
        self._context = list(context)
        self._stream = DecodeStream(skip_special_tokens=self._skip_special)
        for token in context:
            self._stream.step(self._tokenizer, token)

    def step(self, ids: list[int]) -> str:
        step = self._step_marked if self._marked or self._told else self._step_one
        return "".join(map(step, ids))

    def _step_marked(self, token: int) -> str:
        mark = self._marked.get(token)
        if mark is None:
            return self._step_one(token).translate(_NO_MARKS) + self._told.get(token, "")
        before, self._held = self.flush(), []
        self._restart([token])  # which leaves the space in front of the next word as it is
        return f"{before}{TOKEN_MARK}{mark}"

    def _step_one(self, token: int) -> str:
        self._held.append(token)
        try:
            text = self._stream.step(self._tokenizer, token)
        except Exception:  # "Invalid prefix": the decoder rewrote text that was out already; start anew behind it
            self._restart([])
            text = self._stream.step(self._tokenizer, token)
        if text is None:
            return ""
        self._context, self._held = (self._context + self._held)[-8:], []
        return text

    def flush(self) -> str:
        """Returns the bytes that never became whole characters; those that are no text become U+FFFD."""
        before = self._tokenizer.decode(self._context, skip_special_tokens=self._skip_special)
        whole = self._tokenizer.decode(self._context + self._held, skip_special_tokens=self._skip_special)
        return whole[len(before) :] if self._held and whole.startswith(before) else ""
