"""Published fields of requests that are not obeyed: refused by name where they ask for something, or without effect.

A field of a struct is obeyed. What no API publishes follows the rule of the API that is asked.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from moeinf.server.http_errors import Refusal
from moeinf.types import Json, JsonMapping

log = logging.getLogger("moeinf.server")
_NEARLY: Final = 0.85  # of 1, how alike two names are of which one is the other misspelt
_MOST_TOLD: Final = 256  # unknown fields that are remembered, so that each is told of once
_MOST_FIELDS: Final = 1000  # of one object, far more than any API has: each unknown one is compared with all that are
_LONGEST_NAME: Final = 100
_EMPTY: Final[tuple[Json, ...]] = (False, "", [], {})


@dataclass(frozen=True, slots=True)
class Refused:
    """A field that would change an answer. nothing: the values, beside null, that ask for nothing, and so pass.

    words: the whole message, in which {model} is the model's name; "" for one that is made of name and reason.
    """

    why: str
    nothing: tuple[Json, ...] = _EMPTY
    words: str = ""

    def message(self, name: str, given: JsonMapping) -> str:
        if self.words:
            return self.words.format(model=given.get("model"))
        return f"{name} is not supported: {self.why}"

    def asks(self, value: object) -> bool:
        """Whether a value asks for something."""
        return value is not None and not any(_same(value, each) for each in self.nothing)


Unknown = Callable[[str, Collection[str]], None]


def refuse_misspelt(where: str, names: Collection[str]) -> None:
    """Raises Refusal for nearly the name of a field that there is; what is none anywhere is logged, as vLLM does."""
    name = where.rpartition(".")[2]
    if len(name) <= _LONGEST_NAME and (close := difflib.get_close_matches(name, names, 1, _NEARLY)):
        raise Refusal(400, f"{where[:120]} is no field of this API; is {close[0]} meant?")
    log_unknown(where, names)


def log_unknown(where: str, names: Collection[str]) -> None:
    """As ollama does; once, as a client sends a field with each of its requests and messages."""
    tell_once(re.sub(r"\[\d+\]", "[]", ascii(where)[1:-1][:60]))


@lru_cache(_MOST_TOLD)
def tell_once(name: str) -> None:
    log.info("a field without a meaning here: %s", name)


@dataclass(frozen=True, slots=True)
class Fields:
    """What is known of an API's fields beside those that are obeyed.

    silent: those that change no answer, and why.
    """

    refused: Mapping[str, Refused] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    unknown: Unknown = refuse_misspelt

    def check(self, given: JsonMapping, obeyed: Collection[str], where: str = "") -> None:
        """Raises Refusal for the first field that would change the answer, and is not obeyed."""
        if len(given) > _MOST_FIELDS:
            raise Refusal(400, f"{where[:120] or 'the body'} has {len(given)} fields; no request has so many")
        for name, value in given.items():
            if name in obeyed or name in self.silent:
                continue
            rule = self.refused.get(name)
            if rule is None:
                self.unknown(f"{where}{name}", [*obeyed, *self.refused, *self.silent])
            elif rule.asks(value):
                raise Refusal(400, rule.message(f"{where}{name}", given))

    def __or__(self, other: Fields) -> Fields:
        return Fields({**self.refused, **other.refused}, {**self.silent, **other.silent}, other.unknown)


def _same(value: object, other: object) -> bool:
    """Equal, where false is not 0."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)
