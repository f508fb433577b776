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
