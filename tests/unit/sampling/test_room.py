"""Memory that sequences share: who has room, who waits, and what is freed first."""

from __future__ import annotations

import pytest

from moeinf.sampling.room import CLAIMED_AT_ONCE, Claim, Paused, Room

MOST = 1000  # of one sequence


class Sequence:
    def __init__(self, tokens: int = 0) -> None:
        self.tokens = [0] * tokens
        self.claim = Claim()

    def give_up(self) -> None:
        self.tokens, self.claim = [], Claim(background=self.claim.background, after=self.claim.after)


class Kept:
    """What is kept of prompts, 2 bytes a token."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes

    def lend(self, num_bytes: int) -> int:
        lent = num_bytes if num_bytes <= self.num_bytes else 0
        self.num_bytes -= lent
        return lent


class Model:
    def __init__(self, tokens: int, kept: int = 0) -> None:
        self.idle, self.taken, self.kept = list[Sequence](), list[Sequence](), Kept(kept)
        self.room = Room(2 * tokens, 2, lend=self.kept.lend)
        self.room.idle, self.room.taken = (lambda: self.idle), (lambda: self.taken)

    def comes(self) -> Sequence:
        self.taken.append(Sequence())
        return self.taken[-1]

    def begins(self, holder: Sequence, tokens: int, given: int = 0) -> bool:
        began = self.room.begins(holder, tokens, lambda: given)
        if began:
            holder.tokens = [0] * tokens
        return began

    def ends(self, holder: Sequence) -> None:
        self.taken.remove(holder)
        self.idle.append(holder)
        self.room.leaves(holder)


def test_a_request_waits_for_room_in_the_order_of_arrival() -> None:
    model = Model(1000)
    first, large, small = (model.comes() for _ in range(3))
    assert model.begins(first, 600) and not model.begins(large, 600) and not model.begins(small, 10)
    model.ends(first)
    assert model.begins(large, 600) and model.begins(small, 10)
    assert first.tokens == [], "what nobody uses makes room"


def test_a_chat_begins_before_what_nobody_waits_for() -> None:
    model = Model(1000)
    first, behind, chat = (model.comes() for _ in range(3))
    behind.claim.background = True
    assert model.begins(first, 600) and not model.begins(behind, 600) and model.begins(chat, 100)


def test_for_a_chat_that_has_no_room_the_last_background_answer_pauses() -> None:
    model = Model(1000)
    first, last = model.comes(), model.comes()
    for each in (first, last):
        each.claim.background = True
        assert model.begins(each, 400)
    chat = model.comes()
    assert not model.begins(chat, 500) and not model.begins(chat, 500)
    assert last.claim.paused and not first.claim.paused, "one of them is enough, which has yet to give its memory up"
    with pytest.raises(Paused):
        model.room.grows(last, 401, MOST)
    last.give_up()
    assert model.begins(chat, 500) and not model.begins(last, 400)
    model.ends(chat)
    assert model.begins(last, 400) and not model.begins(model.comes(), 900)


def test_no_background_answer_pauses_for_another() -> None:
    model = Model(1000)
    first, other = model.comes(), model.comes()
    first.claim.background = other.claim.background = True
    assert model.begins(first, 600) and not model.begins(other, 600) and not first.claim.paused


def test_idle_sequences_go_first_and_then_what_is_kept_of_prompts() -> None:
    model = Model(1000, kept=400)
    model.idle = [Sequence(300), Sequence(300)]
    assert model.begins(model.comes(), 500) and [len(each.tokens) for each in model.idle] == [0, 300]
    assert model.begins(model.comes(), 600) and model.kept.num_bytes == 400 - 2 * 100
    assert not model.begins(model.comes(), 600)
    first, second, third = model.taken
    model.ends(third)
    model.ends(first)
    assert model.kept.num_bytes == 400 - 2 * 100, "as long as an answer may go on with what is idle"
    model.ends(second)
    assert model.kept.num_bytes == 400 and [len(each.tokens) for each in model.idle if each.tokens] == [600]


def test_what_others_have_takes_no_room() -> None:
    model = Model(1000)
    assert model.begins(model.comes(), 900) and model.begins(model.comes(), 950, given=890)
    assert not model.begins(model.comes(), 950, given=890)


def test_the_one_that_began_last_is_paused() -> None:
    model = Model(1000)
    first, last = model.comes(), model.comes()
    assert model.begins(first, 500) and model.begins(last, 450)
    assert not model.room.grows(first, 501, MOST)
    with pytest.raises(Paused):
        model.room.grows(last, 440, MOST)
    last.give_up()
    assert model.room.grows(first, 501, MOST) and first.claim.tokens == 501 + CLAIMED_AT_ONCE
    assert not model.begins(last, 100), "before another has ended"
    model.ends(first)
    assert model.begins(last, 700)


def test_the_last_pauses_for_its_own_growth_and_the_only_one_never() -> None:
    model = Model(1000)
    first, last = model.comes(), model.comes()
    assert model.begins(first, 500) and model.begins(last, 450)
    with pytest.raises(Paused):
        model.room.grows(last, 451, MOST)
    model.ends(last)
    model.idle = []
    first.tokens = [0] * 990
    assert model.room.grows(first, 1001, 1001) and first.claim.tokens == 1001
