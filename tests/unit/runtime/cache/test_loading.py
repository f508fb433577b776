"""Reading a model that fits into memory as a whole."""

from __future__ import annotations

import numpy as np
import pytest

from moeinf.errors import ExpertReadError
from moeinf.types import IntArray
from tests.support.fake_reader import LAYOUT, SHAPE, make_tier, visit

STRIDE = LAYOUT.stride_bytes
TOTAL = SHAPE.total_experts


def nothing(done: int, total: int) -> None:
    pass


def test_every_expert_is_read_once_in_the_order_of_the_files_into_slots_in_order() -> None:
    tier, reader, policy = make_tier(TOTAL)
    asked: list[tuple[int, int]] = []
    submit = reader.submit

    def noting(keys: IntArray, files: IntArray, offsets: IntArray, destinations: IntArray, *rest: object) -> None:
        asked.extend(zip(keys.tolist(), destinations.tolist(), strict=True))
        submit(keys, files, offsets, destinations, *rest)  # type: ignore[arg-type]

    reader.submit = noting  # type: ignore[method-assign,assignment]
    tier.load_all(nothing)
    first = asked[0][1]
    assert asked == [(key, first + key * STRIDE) for key in range(TOTAL)]
    assert tier.all_resident and len(tier.snapshot().resident) == TOTAL
    tier.check_integrity()
    assert sorted(visit(tier, policy, 1, np.array([[0, 5], [5, 3]]))) == [0, 3, 5]
    assert tier.stats.misses == 0 and tier.stats.demand_reads == 0


def test_progress_rises_from_nothing_to_all_bytes() -> None:
    tier, _, _ = make_tier(TOTAL)
    seen: list[tuple[int, int]] = []
    tier.load_all(lambda done, total: seen.append((done, total)))
    assert seen[0] == (0, TOTAL * STRIDE) and seen[-1] == (TOTAL * STRIDE, TOTAL * STRIDE)
    assert seen == sorted(seen) and len(seen) > 2


def test_the_queue_stays_short() -> None:
    tier, reader, _ = make_tier(TOTAL, load_bytes_ahead=4 * STRIDE)
    longest = []
    tier.load_all(lambda done, total: longest.append(len(reader.queued)))
    assert tier.all_resident and max(longest) <= 4


def test_what_is_there_already_is_not_read_again() -> None:
    tier, reader, policy = make_tier(TOTAL)
    visit(tier, policy, 1, np.array([[2, 4]]))
    tier.load_all(nothing)
    assert tier.all_resident and reader.submitted == TOTAL


def test_an_interrupt_leaves_a_tier_that_goes_on() -> None:
    tier, _, policy = make_tier(TOTAL)

    def interrupt(done: int, total: int) -> None:
        if done >= 5 * STRIDE:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tier.load_all(interrupt)
    tier.check_integrity()
    assert sorted(visit(tier, policy, 2, np.array([[0, 5]]))) == [0, 5]
    tier.load_all(nothing)
    assert tier.all_resident
    tier.check_integrity()


def test_an_unreadable_expert_is_named() -> None:
    tier, _, _ = make_tier(TOTAL, failing=frozenset([7]))
    with pytest.raises(ExpertReadError, match=r"expert 1 of layer 1 .*experts-00001\.bin"):
        tier.load_all(nothing)
    tier.check_integrity()
