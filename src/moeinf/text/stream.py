"""Turns token ids into text as they come, also where a character is split over several tokens."""

from __future__ import annotations

from typing import NamedTuple

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class Piece(NamedTuple):
    """Some text of an answer, or of what was thought before it."""

    text: str
    thought: bool = False


class TokenStream:
    """Turns token ids into text, and holds back what may be the middle of a character."""

    def __init__(self, tokenizer: Tokenizer, context: list[int], *, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._held: list[int] = []
        self._restart(context)

    def _restart(self, context: list[int]) -> None:
        self._context = list(context)
        self._stream = DecodeStream(skip_special_tokens=self._skip_special)
        for token in context:
            self._stream.step(self._tokenizer, token)

    def step(self, ids: list[int]) -> str:
        return "".join(map(self._step_one, ids))

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
