"""Tokens that a checkpoint forbids or favours: the lists of generation_config.json, read as transformers does."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from moeinf.types import JsonMapping

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bans:
    """Under the names of generation_config; the biases are those of sequence_bias, by the tokens that they favour."""

    suppress_tokens: Ids = ()
    begin_suppress_tokens: Ids = ()  # for the first token of an answer
    bad_words_ids: tuple[Ids, ...] = ()  # the last token of each, behind the others
    sequence_bias: tuple[tuple[Ids, float], ...] = ()
    no_repeat_ngram_size: int = 0
    min_length: int = 0  # tokens of prompt and answer together before one may end the answer


NO_BANS = Bans()
_LISTS = ("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias")
_COUNTS = ("no_repeat_ngram_size", "min_length")


def bans_of(config: JsonMapping) -> Bans:
    """What a generation_config asks for; what cannot be read is left out, and named by `unread`."""
    read = {name: _READERS[name](config.get(name)) for name in (*_LISTS, *_COUNTS)}
    return Bans(**{name: value for name, value in read.items() if value})


def unread(config: JsonMapping) -> list[str]:
    """The names whose values are not of the form that transformers takes."""
    return [name for name in (*_LISTS, *_COUNTS) if config.get(name) and _READERS[name](config[name]) is None]


class Forbidden:
    """What bans forbid in one answer, which grows by a token a step."""

    def __init__(self, bans: Bans, ends: Set[int]) -> None:
        """ends: tokens that end an answer; a bad word that is one of them is none, as in transformers."""
        self._bans, self._size = bans, bans.no_repeat_ngram_size
        words = [word for word in bans.bad_words_ids if not (len(word) == 1 and word[0] in ends)]
        self._always = {*bans.suppress_tokens, *(word[0] for word in words if len(word) == 1)}
        self._words = [word for word in words if len(word) > 1]
        self._followers: dict[Ids, set[int]] = {}  # what came behind each run of no_repeat_ngram_size - 1 tokens
        self._seen = 0

    def tokens(self, history: Sequence[int], *, first: bool) -> set[int]:
        """What may not come behind prompt and answer so far; first: the answer has not begun."""
        forbidden = self._always | (set(self._bans.begin_suppress_tokens) if first else set())
        forbidden |= {word[-1] for word in self._words if _ends_with(history, word[:-1])}
        if self._size:
            self._note(history)
            forbidden |= self._followers.get(tuple(history[len(history) - self._size + 1 :]), set())
        return forbidden

    def _note(self, history: Sequence[int]) -> None:
        for end in range(max(self._seen, self._size - 1), len(history)):
            self._followers.setdefault(tuple(history[end - self._size + 1 : end]), set()).add(history[end])
        self._seen = len(history)


def favoured(bans: Bans, history: Sequence[int]) -> Iterable[tuple[int, float]]:
    """Tokens that sequence_bias makes more or less likely behind the history, with what is added to their logits."""
    return ((ids[-1], bias) for ids, bias in bans.sequence_bias if _ends_with(history, ids[:-1]))


def _ends_with(history: Sequence[int], tail: Ids) -> bool:
    return len(tail) <= len(history) and tuple(history[len(history) - len(tail) :]) == tail


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _ids(value: object) -> Ids | None:
    """None for what is no list of token ids."""
    return tuple(value) if isinstance(value, list) and all(_count(each) is not None for each in value) else None


def _sequences(value: object) -> tuple[Ids, ...] | None:
    read = [_ids(each) for each in value] if isinstance(value, list) else [None]
    return tuple(each for each in read if each) if all(read) else None


def _biases(value: object) -> tuple[tuple[Ids, float], ...] | None:
    """Of [[[ids], bias], ...]."""
    if not isinstance(value, list) or not all(isinstance(each, list) and len(each) == 2 for each in value):
        return None
    read = [(_ids(ids), bias) for ids, bias in value]
    whole = all(ids and type(bias) in (int, float) and abs(bias) <= sys.float_info.max for ids, bias in read)
    return tuple((ids, float(bias)) for ids, bias in read if ids) if whole else None


_READERS: Mapping[str, Any] = {
    "suppress_tokens": _ids,
    "begin_suppress_tokens": _ids,
    "bad_words_ids": _sequences,
    "sequence_bias": _biases,
    "no_repeat_ngram_size": _count,
    "min_length": _count,
}
