"""What two token lists have in common, beside the obvious way to find it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from moeinf.sampling.cached_tokens import CachedTokens, common_length
from moeinf.sampling.room import Claim
from tests.support.fake_cache import FakeCache

TOKENS = st.lists(st.integers(0, 2), max_size=40)


@given(TOKENS, TOKENS, TOKENS)
def test_the_common_length_is_that_of_comparing_one_by_one(both: list[int], one: list[int], other: list[int]) -> None:
    first, second = both + one, both + other
    pairs = list(zip(first, second, strict=False))
    wanted = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    assert common_length(first, second) == common_length(second, tuple(first)) == wanted


def test_a_chat_does_not_wait_for_what_is_read_behind_all_chats() -> None:
    prompt = list(range(200))
    read, mine = CachedTokens(FakeCache()), CachedTokens(FakeCache())
    mine.all = read.all = lambda: (read, mine)
    read.reading = prompt
    assert mine.awaited(prompt) == (read, 199)
    read.claim = Claim(background=True)
    assert mine.awaited(prompt) is None
    mine.claim = Claim(background=True)
    assert mine.awaited(prompt) == (read, 199)
