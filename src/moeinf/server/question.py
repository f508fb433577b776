"""A request as one API has it: what is asked, and how the answer is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from moeinf.server.ask import Ask, Event
from moeinf.server.http import Answer
from moeinf.types import JsonObject


class Writer(Protocol):
    """Writes one answer in the form of an API, in pieces of this media type or whole."""

    media_type: str

    def encode(self, event: Event | None) -> Iterable[bytes]:
        """What a client is told of an event; None stands for silence."""
        ...

    def whole(self, answer: Answer) -> JsonObject:
        """The one object of an answer that is not streamed."""
        ...


class WholeWriter:
    """Of answers that are never streamed."""

    media_type = "application/json"

    def encode(self, event: Event | None) -> Iterable[bytes]:
        return ()


@dataclass(frozen=True, slots=True)
class Question:
    """user: whom the request names, so that users of one machine take turns. background: whether it may wait for
    chats; None: the request does not say. others: what it asks beside the first, answered behind it."""

    ask: Ask
    writer: Writer
    streamed: bool
    user: str = ""
    background: bool | None = None
    others: Sequence[Ask] = ()
