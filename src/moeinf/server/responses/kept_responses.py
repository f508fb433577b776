"""The responses that the server keeps, so that a request may go on behind one: in memory, the last used ones."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec

from moeinf.server.http_errors import Refusal
from moeinf.types import JsonObject

MOST_RESPONSES: Final = 1000
MOST_BYTES: Final = 64 << 20  # of them all, as JSON


class Kept(msgspec.Struct):
    """A response, and the items that it answered, those of the responses before it too."""

    response: JsonObject
    items: list[JsonObject]

    @property
    def conversation(self) -> list[JsonObject]:
        """What a request behind this one follows."""
        return [*self.items, *self.response["output"]]


class KeptResponses:
    """Thread-safe. Each is kept with its whole conversation, so that it needs no other."""

    def __init__(self, most: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._kept: OrderedDict[str, bytes] = OrderedDict()  # the last used behind
        self._item_ids: dict[str, set[str]] = {}  # of each response
        self._num_bytes, self._lock = 0, threading.Lock()

    def put(self, response: JsonObject, items: Sequence[JsonObject]) -> None:
        """One that is larger than all may be is not kept."""
        kept = Kept(response, list(items))
        encoded, ids = msgspec.json.encode(kept), {str(item["id"]) for item in kept.conversation if "id" in item}
        if len(encoded) > self._most_bytes:
            return
        with self._lock:
            self._kept[response["id"]], self._item_ids[response["id"]] = encoded, ids
            self._num_bytes += len(encoded)
            while len(self._kept) > self._most or self._num_bytes > self._most_bytes:
                self._drop(next(iter(self._kept)))

    def get(self, identifier: str) -> Kept:
        """Raises Refusal for one that is not kept, or no longer."""
        with self._lock:
            encoded = self._kept.get(identifier)
            if encoded is None:
                raise _missing(identifier)
            self._kept.move_to_end(identifier)
        return msgspec.json.decode(encoded, type=Kept)

    def item(self, identifier: str) -> JsonObject | None:
        """The item with this id, of any response that is kept."""
        with self._lock:
            holder = next((name for name, ids in self._item_ids.items() if identifier in ids), None)
        if holder is None:
            return None
        return next((item for item in self.get(holder).conversation if item.get("id") == identifier), None)

    def remove(self, identifier: str) -> None:
        """Raises Refusal for one that is not kept."""
        with self._lock:
            if identifier not in self._kept:
                raise _missing(identifier)
            self._drop(identifier)

    def _drop(self, identifier: str) -> None:
        self._num_bytes -= len(self._kept.pop(identifier))
        del self._item_ids[identifier]


def _missing(identifier: str) -> Refusal:
    named = ascii(identifier)[:80]
    return Refusal(404, f"response {named} is not kept, or no longer; send the whole conversation", "kept")
