"""What is guessed of an answer that goes on as its prompt went on."""

from __future__ import annotations

from moeinf.sampling.speculation.prompt_lookup import PromptLookup


def test_it_goes_on_behind_the_place_that_is_longest_alike() -> None:
    text = [1, 2, 3, 4, 50, 51, 52, 9, 9, 2, 3, 4, 60, 61, 1, 2, 3, 4]
    guess = PromptLookup().draft(text, 3)
    assert list(guess.ids) == [50, 51, 52] and guess.kind == "3 tokens alike"
    last = [*text[:9], 7, *text[9:13], 7, 2, 3, 4]
    assert list(PromptLookup().draft(last, 5).ids) == [60, 7, 2, 3, 4]  # of two, the last one
    assert not PromptLookup().draft([1, 2, 3, 4, 5, 6, 1, 2], 3).ids
    assert not PromptLookup().draft([1, 2], 3).ids


def test_it_follows_an_answer_and_knows_how_alike_places_are() -> None:
    lookup, text = PromptLookup(), list(range(100, 140))
    for end in range(1, 41):
        assert not lookup.draft(text[:end], 4).ids
    again = [*text, *text[:20]]
    kinds = [lookup.draft(again[: 40 + n], 4) for n in range(1, 21)]
    assert [list(guess.ids) for guess in kinds[:2]] == [[], []]
    assert [list(guess.ids) for guess in kinds[2:]] == [text[n : n + 4] for n in range(3, 21)]
    assert [kinds[n - 1].kind for n in (3, 5, 8, 16)] == [f"{n} tokens alike" for n in (3, 5, 8, 16)]
