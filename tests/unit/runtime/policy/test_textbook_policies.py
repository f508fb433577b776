"""Policies that others have described hold, access for access, what their papers' caches hold."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf.runtime.policy.counting import DecayedFrequency
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.policy.eviction import RequestAware, choose_victims, make_policy
from moeinf.runtime.policy.segments import AdaptiveReplacement, SegmentedLru
from moeinf.types import MoeShape
from tests.oracles import textbook_caches
from tests.oracles.textbook_caches import Contents

SHAPE = MoeShape(num_layers=2, num_experts=6, top_k=1)
BOOKS: dict[str, Callable[[list[int], int], Contents]] = {
    "lru": textbook_caches.lru,
    "lfu": textbook_caches.lfu,
    "decayed-lfu": lambda keys, size: textbook_caches.decayed_lfu(keys, size, 6, DecayedFrequency.HALF_LIFE_TOKENS),
    "slru": lambda keys, size: textbook_caches.slru(keys, size, int(SegmentedLru.PROTECTED * size)),
    "lru-2": textbook_caches.lru_2,
    "arc": textbook_caches.arc,
}


def cache_under(name: str, keys: list[int], size: int) -> Contents:
    """A cache that asks the policy: told each access, out goes the smallest score of what is not accessed."""
    policy = make_policy(name, SHAPE, ActivationCollection(SHAPE), size)
    if isinstance(policy, DecayedFrequency):  # so that equal sums of powers are equal numbers, as in the book
        policy.keep_scores = lambda layer: policy._frequency.round(9)  # type: ignore[method-assign]
    held = np.zeros(SHAPE.num_keys, bool)
    contents: Contents = []
    for key in keys:
        layer, expert = divmod(key, SHAPE.num_experts)
        policy.observe(layer, np.array([[expert]]))
        if not held[key] and held.sum() == size:
            (victim,) = choose_victims(policy.keep_scores(layer), held.reshape(SHAPE.num_layers, -1), 1)
            held[victim.layer * SHAPE.num_experts + victim.expert] = False
        held[key] = True
        contents.append(frozenset(np.flatnonzero(held).tolist()))
    return contents


@pytest.mark.parametrize("name", BOOKS)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, SHAPE.num_keys - 1), max_size=120), st.integers(2, 9))
def test_a_policy_holds_what_its_papers_cache_holds(name: str, keys: list[int], size: int) -> None:
    assert cache_under(name, keys, size) == BOOKS[name](keys, size)


@pytest.mark.parametrize("name", BOOKS)
def test_policies_differ_where_a_scan_passes_what_is_used_again(name: str) -> None:
    """Two experts that come again and again, and all others once in a while: what told such policies from LRU."""
    keys = [key for scan in (2, 6, 2, 6) for key in (0, 1, 0, 1, *range(scan, scan + 4))] * 3
    held = [0 in contents for contents in cache_under(name, keys, 4)]
    assert all(held[len(keys) // 2 :]) == (name != "lru")


def test_a_visit_of_many_tokens_is_the_same_to_frequencies_as_its_tokens_are_one_by_one() -> None:
    shape = MoeShape(1, 6, 2)
    together, singly = DecayedFrequency(shape), DecayedFrequency(shape)
    ids = np.random.default_rng(1).random((9, 6)).argsort(axis=1)[:, :2]
    for tokens in (ids[:5], ids[5:]):
        together.observe(0, tokens)
    for token in ids:
        singly.observe(0, token[None])
    assert together.keep_scores(0) == pytest.approx(singly.keep_scores(0))


def test_the_uses_of_one_visit_are_one_access_to_lists() -> None:
    shape = MoeShape(1, 6, 2)
    for policy in (SegmentedLru(shape, 4), AdaptiveReplacement(shape, 4)):
        policy.observe(0, np.array([[0, 1], [1, 2], [1, 3]]))
        first = policy.keep_scores(0)[0, :4].copy()
        assert (np.diff(first) > 0).all(), "each entered the first list once, in the order of their numbers"
        policy.observe(0, np.array([[1, 5]]))
        scores = policy.keep_scores(0)[0]
        assert scores[1] > scores[5] > scores[0] and scores[4] == -1


def test_version_one_of_the_paper_goes_by_the_running_request_whatever_was_collected() -> None:
    shape = MoeShape(3, 5, 2)
    policy = RequestAware(shape, eps=0.5)
    policy.begin("prefill")
    policy.observe(0, np.array([[0, 1], [0, 2]]))
    policy.begin("decode")
    policy.observe(1, np.array([[3, 4]]))
    shares = np.array([[0.5, 0.25, 0.25, 0, 0], [0, 0, 0, 0.5, 0.5], [0, 0, 0, 0, 0]])
    decay = np.array([[1], [2 / 3], [1 / 3]])
    assert policy.keep_scores(1) == pytest.approx((shares + 0.5) * decay)
    policy.begin("prefill")
    policy.observe(0, np.array([[4, 1]]))
    assert policy.keep_scores(0)[0] == pytest.approx([0.5, 1, 0.5, 0.5, 1])
