"""Which cache the answer to a prompt goes on with."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from moeinf.engine.answers.sequences import WORTH_TOKENS, Sequences
from moeinf.sampling.loop import CachedTokens
from tests.support.fake_cache import FakeCache


def kept(most: int) -> Sequences:
    return Sequences(lambda: CachedTokens(FakeCache()), most)


def answered(sequences: Sequences, prompt: Sequence[int]) -> CachedTokens:
    """The sequence of an answer, which then holds its prompt."""
    with sequences.taken(prompt) as sequence:
        sequence.tokens = list(prompt)
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


def test_a_long_common_beginning_is_worth_a_cache() -> None:
    sequences = kept(2)
    system = list(range(WORTH_TOKENS))
    first = answered(sequences, [*system, *range(500, 900)])
    assert answered(sequences, [*system, 7]) is first


def test_a_short_prompt_that_is_asked_again_is_computed_once() -> None:
    sequences = kept(2)
    first = answered(sequences, [1, 2, 3, *range(10, 40)])  # the answer is longer than the prompt
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
