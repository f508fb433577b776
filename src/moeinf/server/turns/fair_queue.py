"""A bounded queue in which clients take turns."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
_LONGEST_WAIT_S = 3600.0  # of one call of the system, which takes no more than some 292 years


class FairQueue(Generic[T]):
    """Gives out items of each client by turns, so that one who asks much does not keep others waiting.

    Within the turns of a client those that it calls its users take turns, and of each the oldest item comes first.
    Thread-safe.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        # Of clients, and of the users of each: whose turn comes next stands first.
        self._turns: OrderedDict[str, OrderedDict[str, deque[T]]] = OrderedDict()
        self._changed = threading.Condition()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, client: str, item: T, user: str = "") -> bool:
        """Returns False, and takes nothing, where `capacity` items wait already."""
        with self._changed:
            if self._size >= self._capacity:
                return False
            self._turns.setdefault(client, OrderedDict()).setdefault(user, deque()).append(item)
            self._size += 1
            self._changed.notify()
            return True

    def get(self, timeout_s: float | None) -> T | None:
        """Waits for an item, at most timeout_s; None when none came."""
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not self._turns:
                left = until - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(min(left, _LONGEST_WAIT_S))
            client, users = self._turns.popitem(last=False)
            user, items = users.popitem(last=False)
            item = items.popleft()
            if items:
                users[user] = items  # behind all others
            if users:
                self._turns[client] = users
            self._size -= 1
            return item

    def remove(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Takes out the items that are no longer wanted, and returns them."""
        with self._changed:
            removed = list[T]()
            for client, users in list(self._turns.items()):
                for user, items in list(users.items()):
                    kept = deque[T]()
                    for item in items:
                        (removed if unwanted(item) else kept).append(item)
                    users[user] = kept
                    if not kept:
                        del users[user]
                if not users:
                    del self._turns[client]
            self._size -= len(removed)
            return removed
