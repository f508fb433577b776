"""The queue is bounded, and clients take turns in it."""

from __future__ import annotations

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeinf.server.turns import fair_queue
from moeinf.server.turns.fair_queue import FairQueue, May


def all_of(queue: FairQueue[int]) -> list[int]:
    items = []
    while (item := queue.get(0)) is not None:
        items.append(item)
    return items


def test_clients_take_turns() -> None:
    queue = FairQueue[int](10)
    for client, item in (("a", 1), ("a", 2), ("a", 3), ("b", 10), ("c", 20), ("b", 11)):
        assert queue.put(client, item)
    assert all_of(queue) == [1, 10, 20, 2, 11, 3]


def test_users_take_turns_within_those_of_their_client() -> None:
    queue = FairQueue[int](10)
    for user, item in (("x", 1), ("y", 2), ("z", 3), ("x", 4)):
        assert queue.put("a", item, user)
    assert queue.put("b", 10) and queue.put("b", 11)
    assert all_of(queue) == [1, 10, 2, 11, 3, 4]


def test_background_items_come_behind_all_others_and_take_turns_too() -> None:
    queue = FairQueue[int](10)
    for client, item, background in (
        ("a", 1, True), ("a", 2, True), ("b", 10, True), ("a", 3, False), ("b", 11, False), ("a", 4, False),
    ):  # fmt: skip
        assert queue.put(client, item, background=background)
    assert queue.in_order() == [3, 11, 4, 1, 10, 2]
    assert all_of(queue) == [3, 11, 4, 1, 10, 2]


def test_an_item_that_has_to_wait_lets_others_go_and_keeps_its_turn() -> None:
    queue = FairQueue[int](10)
    for client, item in (("a", 1), ("a", 2), ("b", 10), ("c", 20)):
        queue.put(client, item)
    waits = {1, 10}
    assert queue.get(0, lambda item: May.WAIT if item in waits else May.GO) == 20
    assert queue.in_order() == [1, 10, 2]
    assert queue.first(lambda item: May.GO) == 1
    assert queue.get(0, lambda item: May.WAIT if item in waits else May.GO) == 2
    assert queue.in_order() == [10, 1] and len(queue) == 2


def test_an_item_that_blocks_lets_nobody_behind_it_go() -> None:
    queue = FairQueue[int](10)
    for item in (1, 2, 3):
        queue.put("a", item)
    assert queue.get(0, lambda item: May.BLOCK if item == 2 else May.WAIT if item == 1 else May.GO) is None
    assert all_of(queue) == [1, 2, 3]


def test_an_item_that_is_unwanted_from_now_on_is_removed_or_kept() -> None:
    queue, answers = FairQueue[int](10), iter([False, True])
    queue.put("a", 1)
    assert queue.remove(lambda item: next(answers)) == [] and all_of(queue) == [1]


def test_no_more_than_its_capacity() -> None:
    queue = FairQueue[int](2)
    assert queue.put("a", 1) and queue.put("b", 2)
    assert not queue.put("c", 3)
    assert queue.get(0) == 1
    assert queue.put("c", 3)
    assert len(queue) == 2


def test_removal() -> None:
    queue = FairQueue[int](10)
    for item in range(6):
        queue.put("ab"[item % 2], item)
    assert sorted(queue.remove(lambda item: item % 3 == 0)) == [0, 3]
    assert len(queue) == 4
    assert sorted(all_of(queue)) == [1, 2, 4, 5]


def test_get_waits_for_an_item() -> None:
    queue, found = FairQueue[int](1), list[int | None]()
    thread = threading.Thread(target=lambda: found.append(queue.get(None)))
    thread.start()
    queue.put("a", 7)
    thread.join(10)
    assert found == [7]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers()), max_size=30))
def test_every_item_comes_once_and_a_client_s_own_in_order(items: list[tuple[str, int]]) -> None:
    queue = FairQueue[tuple[str, int, int]](len(items) or 1)
    for number, (client, value) in enumerate(items):
        queue.put(client, (client, value, number))
    order = queue.in_order()
    found = []
    while (item := queue.get(0)) is not None:
        found.append(item)
    assert found == order
    for client in "abc":
        mine = [(value, number) for who, value, number in found if who == client]
        assert mine == [(value, n) for n, (who, value) in enumerate(items) if who == client]
    assert len(found) == len(items)


@pytest.mark.parametrize("timeout_s", [9.3e9, 1e12, 1e300, math.inf, None])
def test_a_wait_may_be_longer_than_the_system_counts(timeout_s: float | None) -> None:
    queue = FairQueue[int](1)
    threading.Timer(0.05, queue.put, ("a", 7)).start()
    assert queue.get(timeout_s) == 7


def test_a_wait_that_the_system_ends_early_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_queue, "_LONGEST_WAIT_S", 0.01)
    queue = FairQueue[int](1)
    threading.Timer(0.1, queue.put, ("a", 7)).start()
    assert queue.get(60.0) == 7
    assert queue.get(0.03) is None
