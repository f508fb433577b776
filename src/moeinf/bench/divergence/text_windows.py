"""Cuts a text into windows that models read on their own, as llama.cpp's perplexity does: the second half counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from moeinf.config.compare_options import CompareOptions
from moeinf.errors import UsageError
from moeinf.text.tokenizer import Tokenizer
from moeinf.types import IntArray

_CHARACTERS: Final = 16  # of a text for each token, at most
SAMPLED: Final = 16  # tokens of a window whose hidden states are compared, layer by layer


@dataclass(frozen=True, slots=True)
class Windows:
    """Token ids in windows of one length, each begun as the tokenizer begins a text."""

    ids: tuple[tuple[int, ...], ...]

    @property
    def length(self) -> int:
        return len(self.ids[0])

    @property
    def first(self) -> int:
        """The first position of a window whose prediction counts."""
        return self.length // 2

    @property
    def scored(self) -> int:
        """Predictions of a window that count: those at the positions from `first` to the last but one."""
        return self.length - 1 - self.first

    @property
    def sampled(self) -> IntArray:
        """Positions of a window, among those that count, whose hidden states are compared."""
        return np.unique(np.linspace(self.first, self.length - 2, SAMPLED).astype(np.int64))

    def following(self, window: int) -> IntArray:
        """The tokens that a window's scored positions are to predict [scored]."""
        return np.array(self.ids[window][self.first + 1 :])


def windows_of(text: str, tokenizer: Tokenizer, options: CompareOptions) -> Windows:
    """Windows of a text, as many as it has and as may be read. Raises UsageError for a text that fills none."""
    length = options.window
    begun = tokenizer.encode(text[: _CHARACTERS * options.tokens], added=False)
    ids = tokenizer.encode(text[: _CHARACTERS * options.tokens], bos=False, added=False)
    begin = begun[: len(begun) - len(ids)]
    room = length - len(begin)
    count = min(len(ids) // room, options.tokens // length)
    if count == 0:
        where = f"--text {options.text}" if options.text else "the text that comes along"
        raise UsageError(
            f"{where} has {len(begun)} tokens, and a window takes {length}: give a longer --text, or a smaller "
            "--window (with `pull`, fewer --tokens)"
        )
    return Windows(tuple((*begin, *ids[number * room : (number + 1) * room]) for number in range(count)))
