"""Where an answer ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeinf.text.answer import AnswerText
from moeinf.text.tokenizer import Tokenizer
from tests.support.tool_families import BY_NAME, TOOLS


@pytest.mark.parametrize("tools", [(), TOOLS])
@pytest.mark.parametrize(
    ("answer", "stop", "text"),
    [
        ("A\n\n", "\n\n", "A"),  # space that may stand before a call is held back
        ("A \n", "\n", "A "),
        ("A\n\nB", "\n\n", "A"),
        ("A<tool_", "<tool", "A"),
        ("A STOP", "STOP", "A "),
    ],
)
def test_a_stop_that_the_last_token_completes_ends_the_answer(
    tmp_path: Path, tools: list[dict[str, object]], answer: str, stop: str, text: str
) -> None:
    with Tokenizer(BY_NAME["qwen3"].write(tmp_path)) as tokenizer:
        found = AnswerText(tokenizer.stream([], chat=True, tools=tools), tokenizer.eos_ids, [stop])
        said = "".join(piece.text for piece in found.pieces(tokenizer.encode(answer, bos=False)) if piece)
    assert (said, found.ended, found.stop) == (text, True, stop)


@pytest.mark.parametrize(
    ("answer", "stop", "text", "ended"),
    [
        ("A \n<|im_start|>user", "<|im_start|>", "A \n", True),
        ("A \n<|im_start|>user", "\n<|im_start|>user", "A ", True),
        ("A<|im_start|>tool<|im_start|>user\n", "<|im_start|>user\n", "Atool", True),
        ("A<|im_start|>B", "<|im_start|>C", "AB", False),
        ("A<|im_start|>", "<|im_start|>C", "A", False),
        ("<|im_start|>A", "<|im_start|>", "", True),
        ("A<|im_end|>", "<|im_start|>", "A", True),
    ],
)
@pytest.mark.parametrize("tools", [(), TOOLS])
def test_a_control_token_in_a_stop_is_that_token(
    tmp_path: Path, tools: list[dict[str, object]], answer: str, stop: str, text: str, ended: bool
) -> None:
    """It is left out of the text, so that its letters never come."""
    with Tokenizer(BY_NAME["qwen3"].write(tmp_path)) as tokenizer:
        stream = tokenizer.stream([], chat=True, tools=tools, stops=[stop])
        found = AnswerText(stream, tokenizer.eos_ids, [stop])
        ids = tokenizer.encode(answer, control_tokens=True, bos=False)
        said = "".join(piece.text for piece in found.pieces(ids) if piece)
    assert (said, found.ended) == (text, ended)
    assert found.stop == (stop if ended and "<|im_end|>" not in answer else None)


def test_letters_of_a_control_token_end_an_answer_too(tmp_path: Path) -> None:
    with Tokenizer(BY_NAME["qwen3"].write(tmp_path)) as tokenizer:
        stop = "<|im_start|>"
        found = AnswerText(tokenizer.stream([], chat=True, stops=[stop]), tokenizer.eos_ids, [stop])
        ids = tokenizer.encode("A <|im_start|>user", bos=False)
        assert "".join(piece.text for piece in found.pieces(ids) if piece) == "A "
    assert found.stop == stop
