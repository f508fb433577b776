"""Harmony, in which gpt-oss writes: an answer is several messages, each in a channel.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>

Its analysis is what other models think between tags.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer

from moeinf.text.stream import Piece, TokenStream

_START, CHANNEL, _MESSAGE, _END = _CONTROLS = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"


def is_harmony(tokenizer: Tokenizer) -> bool:
    return tokenizer.token_to_id(CHANNEL) is not None


class HarmonyStream:
    """Turns token ids into thoughts and answer, and leaves out the heads of the messages (role and channel)."""

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int]) -> None:
        """context: the end of the prompt, which may have begun a message."""
        self._tokenizer = tokenizer
        self._controls = {tokenizer.token_to_id(name): name for name in _CONTROLS}
        names = [self._controls.get(token) for token in context]
        in_head = _START in names and _MESSAGE not in names[len(names) - names[::-1].index(_START) :]
        self._head: list[int] | None = [] if in_head else None  # since its last control token; None in a message's text
        self._text = TokenStream(tokenizer, [] if in_head else list(context), skip_special=True)
        self._thinking = False
        self._shown: set[bool] = set()  # whether there was some thought (True) and some answer (False)

    def step(self, ids: Sequence[int]) -> list[Piece]:
        return [piece for token in ids for piece in self._step_one(token)]

    def _step_one(self, token: int) -> Iterator[Piece]:
        control = self._controls.get(token)
        if control == _MESSAGE:
            yield from self._begin()
        elif control is not None:
            yield from self.flush()
            self._head = []
        elif self._head is not None:
            self._head.append(token)
        else:
            yield from self._pieces(self._text.step([token]))

    def _begin(self) -> list[Piece]:
        """Begins a message whose head is complete; returns the space between it and the one of its kind before."""
        self._thinking = self._tokenizer.decode(self._head or []).split()[:1] == ["analysis"]
        self._head, self._text = None, TokenStream(self._tokenizer, [], skip_special=True)
        return self._pieces("\n\n" if self._thinking in self._shown else "")

    def _pieces(self, text: str) -> list[Piece]:
        self._shown |= {self._thinking} if text else set()
        return [Piece(text, self._thinking)] if text else []

    def flush(self) -> list[Piece]:
        return [] if self._head is not None else self._pieces(self._text.flush())
