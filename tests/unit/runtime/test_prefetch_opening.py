"""What the first tokens tell of prefetch."""

from __future__ import annotations

import pytest

from moeinf.runtime.prefetch_opening import TOKENS, TURNS, Opening, TokenCost, trimmed_mean

NO_REGRET = 0.0


def opening(with_it: TokenCost, without: TokenCost) -> Opening:
    made = Opening()
    while (on := made.next_kind) is not None:
        made.count(on, with_it if on else without)
    return made


def test_each_kind_has_half_of_the_tokens_and_none_always_comes_second() -> None:
    made, kinds = Opening(), list[bool]()
    while (on := made.next_kind) is not None:
        kinds.append(on)
        made.count(on, TokenCost(0.0, 0.0, 0, 0))
    assert len(kinds) == TOKENS and sum(kinds) == TOKENS // 2
    assert tuple(kinds[: len(TURNS)]) == TURNS and TURNS[0] != TURNS[2]


def test_what_is_waited_less_counts_against_what_the_host_takes() -> None:
    made = opening(TokenCost(0.006, 0.003, 10, 0), TokenCost(0.010, 0.0, 10, 0))
    assert made.gain_s(NO_REGRET) == pytest.approx(0.004 - 0.003)


def test_tokens_that_happen_to_miss_more_do_not_speak_against_their_kind() -> None:
    made = opening(TokenCost(0.024, 0.001, 40, 0), TokenCost(0.010, 0.0, 10, 0))
    assert made.gain_s(NO_REGRET) == pytest.approx(25 * (0.0010 - 0.0006) - 0.001)


def test_a_wasted_read_costs_what_it_makes_later_tokens_read() -> None:
    made = opening(TokenCost(0.006, 0.0, 10, 5), TokenCost(0.010, 0.0, 10, 0))
    assert made.gain_s(regret=0.4) == pytest.approx(0.004 - 5 * 0.4 * 0.001)


def test_a_token_that_waited_for_another_program_changes_nothing() -> None:
    made = Opening()
    while (on := made.next_kind) is not None:
        made.count(on, TokenCost(0.006, 0.001, 10, 0) if on else TokenCost(0.010, 0.0, 10, 0))
    disturbed = Opening()
    for at in range(TOKENS):
        on = bool(disturbed.next_kind)
        slow = 5.0 if at == 0 else 0.0
        disturbed.count(on, TokenCost(0.006 + slow, 0.001 + slow, 10, 0) if on else TokenCost(0.010, 0.0, 10, 0))
    assert disturbed.gain_s(NO_REGRET) == pytest.approx(made.gain_s(NO_REGRET))


def test_where_nothing_is_read_prefetch_only_costs() -> None:
    assert opening(TokenCost(0.0, 0.001, 0, 0), TokenCost(0.0, 0.0, 0, 0)).gain_s(NO_REGRET) == pytest.approx(-0.001)


def test_the_mean_leaves_out_the_ends() -> None:
    assert trimmed_mean([9.0, 1.0, 2.0, 3.0, 2.0, 2.0, 1.0, -50.0]) == pytest.approx(11 / 6)
