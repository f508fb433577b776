"""Which cache the answer to a prompt goes on with."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from moeinf.engine.answers.sequences import Sequences
from moeinf.models.layers.kv_cache import NewTokens
from moeinf.sampling.cached_tokens import WORTH_TOKENS, CachedTokens
from tests.support.fake_cache import FakeCache


def kept(most: int) -> Sequences:
    return Sequences(lambda: CachedTokens(FakeCache()), most)


def computed(sequence: CachedTokens, prompt: Sequence[int]) -> int:
    """Gives a sequence a prompt; returns how many of its tokens were there."""
    start, _ = sequence.rewind_to(prompt)
    cache = sequence.cache
    assert isinstance(cache, FakeCache)
    cache.step([NewTokens(prompt[start:], cache, len(prompt))])  # type: ignore[arg-type]
    sequence.tokens = list(prompt)
    return start


def answered(sequences: Sequences, prompt: Sequence[int]) -> CachedTokens:
    """The sequence of an answer, which then holds its prompt."""
    with sequences.taken(prompt) as sequence:
        computed(sequence, prompt)
    return sequence


def test_a_prompt_goes_on_where_it_began() -> None:
    sequences = kept(2)
    first, second = answered(sequences, [1, 2, 3]), answered(sequences, [7, 8, 9])
    assert first is not second
    assert answered(sequences, [1, 2, 3, 4]) is first and answered(sequences, [7, 8, 9, 4]) is second


def test_a_common_first_token_takes_no_cache_from_another_chat() -> None:
    sequences = kept(3)
    chats = [[1, number, *range(100 * number, 100 * number + 40)] for number in (2, 3, 4)]
    found = [answered(sequences, chat) for chat in chats]
    assert len({id(each) for each in found}) == 3
    assert answered(sequences, [1, 5, 6]) is found[0], "the one that was left alone for longest"


SYSTEM = list(range(2 * WORTH_TOKENS))


def test_another_chat_takes_a_long_beginning_and_leaves_the_rest() -> None:
    sequences = kept(2)
    first = answered(sequences, [*SYSTEM, *range(500, 900)])
    with sequences.taken([*SYSTEM, 7]) as second:
        assert second is not first and computed(second, [*SYSTEM, 7]) == len(SYSTEM)
    assert len(first.tokens) == len(SYSTEM) + 400
    assert rows(second) == rows(answered(kept(1), [*SYSTEM, 7]))


def test_a_beginning_is_taken_from_an_answer_that_goes_on() -> None:
    sequences = kept(2)
    with sequences.taken([*SYSTEM, 1]) as first:
        computed(first, [*SYSTEM, 1])
        with sequences.taken([*SYSTEM, 2]) as second:
            assert computed(second, [*SYSTEM, 2]) == len(SYSTEM)
    assert rows(second) == rows(answered(kept(1), [*SYSTEM, 2]))


def test_a_sequence_is_awaited_while_it_is_given_the_same_beginning() -> None:
    sequences = kept(3)
    prompt = [*SYSTEM, 2]
    with sequences.taken([*SYSTEM, 1]) as first, sequences.taken(prompt) as second:
        assert second.awaited(prompt) is None
        first.reading = [*SYSTEM, 1]
        assert second.awaited(prompt) == (first, len(SYSTEM)) and first.awaited(first.reading) is None
        assert second.awaited([*SYSTEM[: WORTH_TOKENS - 1], -1, -2]) is None, "too little in common"
        first.tokens = SYSTEM[: len(SYSTEM) - 10]
        assert second.awaited(prompt) is None, "the rest is soon computed"


def rows(sequence: CachedTokens) -> bytes:
    cache = sequence.cache
    assert isinstance(cache, FakeCache)
    return cache.rows[: cache.length].tobytes()


def test_a_short_prompt_that_is_asked_again_is_computed_once() -> None:
    sequences = kept(2)
    first = answered(sequences, [1, 2, 3])
    first.tokens += range(10, 40)  # the answer is longer than the prompt
    assert answered(sequences, [1, 2, 3]) is first


def test_answers_side_by_side_have_a_cache_each() -> None:
    sequences = kept(3)
    with ExitStack() as answers:
        taken = [answers.enter_context(sequences.taken([1, 2])) for _ in range(3)]
    assert len({id(each) for each in taken}) == 3
    assert sequences.last is taken[0], "left last"


@pytest.mark.parametrize("error", [GeneratorExit, KeyboardInterrupt, RuntimeError])
def test_a_cache_comes_back_however_its_answer_ends(error: type[BaseException]) -> None:
    sequences = kept(1)
    with pytest.raises(error), sequences.taken([1]):
        raise error
    assert answered(sequences, [1]) is sequences.last


def test_an_answer_lends_its_cache_and_goes_on_with_another() -> None:
    sequences = kept(1)
    with sequences.taken([1, 2, 3]) as first:
        cache, first.tokens = first.cache, []
        come_back = first.lend(first)
        assert sequences.lent == 1
        with sequences.taken([7, 8]) as second:
            assert second is not first and second.cache is cache and sequences.lent == 1
            computed(second, [7, 8])
        come_back([7, 8, 9])
        assert sequences.lent == 0 and first.cache is cache and first.tokens == [7, 8]
    assert answered(sequences, [7, 8]) is first, "there is but one sequence again"


def test_an_answer_that_ends_without_its_cache_leaves_it_to_the_others() -> None:
    sequences = kept(1)
    with ExitStack() as ending:
        first = ending.enter_context(sequences.taken([1, 2, 3]))
        first.tokens = []
        first.lend(first)
        with sequences.taken([7, 8]) as second:
            ending.close()
            assert sequences.lent == 0
    assert sequences.last is second and answered(sequences, [5]) is second
