"""Memory that slots lend to long pieces of a prompt."""

from __future__ import annotations

from moeinf.hardware import MemoryState
from moeinf.runtime.cache.lending import Lending
from moeinf.runtime.cache.pressure import MemoryWatch
from tests.support.fake_reader import LAYOUT, SHAPE, Tier, make_tier

STRIDE = LAYOUT.stride_bytes


def looked(tier: Tier, slots: int) -> None:
    """The machine has room for so many slots, of which one is to stay free."""
    state = MemoryState(slots * STRIDE, "machine", 0.0)
    MemoryWatch(tier, SHAPE.top_k, STRIDE, lambda text: None, lambda: state, lambda: 0.0).look()


def test_slots_are_lent_until_a_pass_needs_nothing() -> None:
    tier, _, _ = make_tier(12)
    released = list[int]()
    lending = Lending(tier, lambda: released.append(tier.num_slots))
    for num_bytes, slots in ((0, 12), (3 * STRIDE - 1, 9), (5 * STRIDE, 7), (STRIDE, 7), (0, 12), (0, 12)):
        lending.lend(num_bytes)
        assert tier.num_slots == slots
    assert released == [7], "working memory goes before slots come back"
    tier.check_integrity()


def test_what_is_lent_is_no_room_for_slots() -> None:
    tier, _, _ = make_tier(12)
    lending = Lending(tier, lambda: None)
    lending.lend(5 * STRIDE)
    looked(tier, 100)
    assert tier.num_slots == 7
    tier.resize(12)
    assert tier.num_slots == 7
    assert tier.stats.given_back_bytes == 0, "that is what other programs get"


def test_what_other_programs_have_got_is_not_lent_again_nor_taken_from_them() -> None:
    tier, _, _ = make_tier(12)
    lending = Lending(tier, lambda: None)
    tier.resize(10)
    lending.lend(5 * STRIDE)
    assert tier.num_slots == 5
    lending.lend(0)
    assert tier.num_slots == 5, "the watch gives them back once there is room"
    looked(tier, 100)
    assert tier.num_slots == 12


def test_a_token_keeps_the_slots_that_it_needs() -> None:
    tier, _, _ = make_tier(12)
    Lending(tier, lambda: None).lend(100 * STRIDE)
    assert tier.num_slots == SHAPE.top_k == tier.sizes.least_slots
