"""A bounded queue in which chats go before background requests, and clients take turns."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import Generic, TypeVar

T = TypeVar("T")
_LONGEST_WAIT_S = 3600.0  # of one call of the system, which takes no more than some 292 years
# Of clients, and of the users of each: whose turn comes next stands first.
_Turns = OrderedDict[str, OrderedDict[str, deque[T]]]


class May(Enum):
    """Whether an item may be taken now."""

    GO = auto()
    WAIT = auto()  # while those behind it may go
    BLOCK = auto()  # as those behind it, so that its turn comes


class FairQueue(Generic[T]):
    """Gives out items of each client by turns, so that one who asks much does not keep others waiting.

    Items in the background come behind all others. Within the turns of a client those that it calls its users take
    turns, and of each the oldest item comes first. Thread-safe.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lanes: tuple[_Turns[T], _Turns[T]] = (OrderedDict(), OrderedDict())
        self._changed = threading.Condition()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, client: str, item: T, user: str = "", *, background: bool = False) -> bool:
        """Returns False, and takes nothing, where `capacity` items wait already."""
        with self._changed:
            if self._size >= self._capacity:
                return False
            turns = self._lanes[background]
            turns.setdefault(client, OrderedDict()).setdefault(user, deque()).append(item)
            self._size += 1
            self._changed.notify()
            return True

    def get(self, timeout_s: float | None, may: Callable[[T], May] = lambda item: May.GO) -> T | None:
        """Waits for an item that may be taken, at most timeout_s; None when none came."""
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while (found := self._first(may)) is None:
                left = until - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(min(left, _LONGEST_WAIT_S))
            return self._taken(*found)

    def first(self, may: Callable[[T], May]) -> T | None:
        """What `get` would give now."""
        with self._changed:
            found = self._first(may)
        return None if found is None else found[-1]

    def in_order(self) -> list[T]:
        """The items in the order in which they would be taken, if nothing else came."""
        with self._changed:
            return [item for _, _, _, item in self._order()]

    def remove(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Takes out the items that are no longer wanted, and returns them."""
        with self._changed:
            removed = list[T]()
            for turns in self._lanes:
                for client, users in list(turns.items()):
                    for user, items in list(users.items()):
                        kept = deque[T]()
                        for item in items:
                            (removed if unwanted(item) else kept).append(item)
                        users[user] = kept
                        if not kept:
                            del users[user]
                    if not users:
                        del turns[client]
            self._size -= len(removed)
            return removed

    def _order(self) -> Iterator[tuple[_Turns[T], str, str, T]]:
        """Each item behind its lane, its client and its user."""
        for turns in self._lanes:
            left = deque((client, deque(users.items())) for client, users in turns.items())
            given = dict[int, int]()  # how many items of a user were given, by the id of its items
            while left:
                client, users = left.popleft()
                user, items = users.popleft()
                at = given[id(items)] = given.get(id(items), -1) + 1
                yield turns, client, user, items[at]
                if at + 1 < len(items):
                    users.append((user, items))
                if users:
                    left.append((client, users))

    def _first(self, may: Callable[[T], May]) -> tuple[_Turns[T], str, str, T] | None:
        for place in self._order():
            verdict = may(place[-1])
            if verdict is May.GO:
                return place
            if verdict is May.BLOCK:
                return None
        return None

    def _taken(self, turns: _Turns[T], client: str, user: str, item: T) -> T:
        """The item, out of the queue. Its client and its user come behind all others now."""
        users = turns.pop(client)
        items = users.pop(user)
        items.remove(item)
        if items:
            users[user] = items
        if users:
            turns[client] = users
        self._size -= 1
        return item
