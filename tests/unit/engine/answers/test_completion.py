"""What an answer keeps of the pieces that it comes in."""

from __future__ import annotations

from moeinf.engine.completion import Completion, GenerationStats
from moeinf.text.text_stream import Piece


def test_the_tokens_of_thoughts_are_counted_wherever_they_stand() -> None:
    answer = Completion("", [], "stop", GenerationStats())
    for num_tokens, piece in (
        (2, Piece("Hm", thought=True)),
        (1, Piece(".", thought=True)),
        (0, Piece("\n", thought=True)),
        (4, Piece("First")),
        (3, Piece("And", thought=True)),
        (0, Piece("so")),
        (5, Piece("on")),
    ):
        answer.token_ids += [1] * num_tokens
        answer.add(piece)
    assert (answer.thinking, answer.text, answer.thought_tokens) == ("Hm.\nAnd", "Firstsoon", 6)
