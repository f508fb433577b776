"""Blocks in host memory: found by what they follow, evicted by age, within a budget."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf.prefixes.block import Block, common_length, digest_of, next_entry, token_array
from moeinf.prefixes.memory import MemoryTier

ROOT = b"root"


def block(tokens: list[int], parent: bytes = ROOT, num_bytes: int = 96) -> Block:
    """One that counts 4 bytes a token more than num_bytes."""
    values = token_array(tokens)
    return Block(parent, digest_of(parent, values), 0, values, np.zeros(num_bytes, np.uint8))


def test_a_name_tells_the_tokens_and_all_before_them() -> None:
    first, second = digest_of(ROOT, token_array([1, 2])), digest_of(ROOT, token_array([1]))
    assert first == digest_of(ROOT, token_array([1, 2]))
    assert len({first, second, digest_of(second, token_array([2])), digest_of(b"other", token_array([1, 2]))}) == 4


@pytest.mark.parametrize("one, other, common", [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 9, 3], 1)])
def test_what_tokens_have_in_common(one: list[int], other: list[int], common: int) -> None:
    assert common_length(token_array(one), token_array(other)) == common


def test_the_longest_block_that_a_prompt_begins_with_is_next() -> None:
    short, long, other = block([1]), block([1, 2, 3]), block([1, 2, 4])
    assert next_entry([short, long, other], token_array([1, 2, 3, 4])) is long
    assert next_entry([short, long, other], token_array([1, 2])) is short
    assert next_entry([long, other], token_array([1, 2])) is None
    assert next_entry([long], token_array([])) is None


def test_of_equal_blocks_one_with_a_state_is_next() -> None:
    without, stateful = block([1]), block([1])
    stateful.state = np.zeros(8, np.uint8)
    assert next_entry([without, stateful], token_array([1, 2])) is stateful


def test_the_block_that_was_used_least_recently_leaves_first() -> None:
    tier, blocks = MemoryTier(300), [block([token]) for token in range(3)]
    for each in blocks:
        tier.add(each)
    tier.touch([blocks[0].digest])
    assert tier.make_room(100, set())
    assert [each.digest in tier for each in blocks] == [True, False, True]
    assert tier.used_bytes == 200 and list(tier.children(ROOT)) == [blocks[0], blocks[2]]


def test_a_block_leaves_before_the_one_that_it_follows() -> None:
    tier, first = MemoryTier(300), block([1])
    second = block([2], first.digest)
    third = block([3], second.digest)
    for each in (first, second, third):
        tier.add(each)
    tier.touch([first.digest, second.digest, third.digest])
    for gone in (third, second, first):
        assert tier.make_room(300 - tier.used_bytes + 1, set()) and gone.digest not in tier


def test_what_is_kept_or_pending_does_not_leave() -> None:
    tier, blocks = MemoryTier(300), [block([token]) for token in range(3)]
    for each in blocks:
        tier.add(each)
    blocks[0].pending = True
    assert tier.make_room(100, {blocks[1].digest}) and blocks[2].digest not in tier
    assert not tier.make_room(200, {blocks[1].digest}) and len(tier) == 2
    assert not tier.make_room(301, set()) and len(tier) == 2, "nothing leaves for what never fits"


def test_a_state_counts() -> None:
    tier, each = MemoryTier(300), block([1])
    tier.add(each)
    tier.set_state(each, np.zeros(50, np.uint8))
    assert tier.used_bytes == 150
    tier.set_state(each, None)
    assert tier.used_bytes == 100
    tier.clear()
    assert (tier.used_bytes, len(tier), len(tier.children(ROOT))) == (0, 0, 0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 200)), max_size=40))
def test_the_budget_holds_whatever_comes(steps: list[tuple[int, int]]) -> None:
    tier = MemoryTier(500)
    for token, num_bytes in steps:
        each = block([token], num_bytes=num_bytes)
        if each.digest not in tier and tier.make_room(each.num_bytes, set()):
            tier.add(each)
        assert tier.used_bytes == sum(b.num_bytes for b in tier.children(ROOT)) <= tier.budget_bytes


def test_what_is_lent_is_taken_from_the_budget_until_it_is_given_again() -> None:
    tier = MemoryTier(300)
    for number in range(3):
        tier.add(block([number]))
    assert tier.lend(301) == 0 and len(tier) == 3, "all or nothing"
    assert tier.lend(120) == 120 and len(tier) == 1 and tier.used_bytes <= 180
    tier.resize(300)
    assert tier.budget_bytes == 180
    assert tier.lend(-120) == -120 and tier.budget_bytes == tier.most_bytes == 300
