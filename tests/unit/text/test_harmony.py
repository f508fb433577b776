"""What is shown of gpt-oss's answers, and what it is reminded of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from moeinf.text.tokenizer import Tokenizer
from tests.support.shown_text import apart, shown
from tests.support.text_models import byte_level_tokenizer

MakeFolder = Callable[..., Path]
SPECIALS = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|constrain|>"]
THOUGHT = "<|channel|>analysis<|message|>They greet.<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>Hello 日本!"


@pytest.fixture
def folder(model_folder: MakeFolder) -> Path:
    return model_folder(tokenizer=byte_level_tokenizer(SPECIALS), tokenizer_config={"eos_token": "<|return|>"})


@pytest.mark.parametrize(
    ("answer", "thought", "text"),
    [
        (THOUGHT + FINAL, "They greet.", "Hello 日本!"),
        ("<|channel|>final<|message|>Hello", "", "Hello"),
        ("<|channel|>analysis<|message|>They", "They", ""),
        ("<|channel|>ana", "", ""),
        (THOUGHT + "<|start|>assistant" + THOUGHT + FINAL, "They greet.\n\nThey greet.", "Hello 日本!"),
        (
            "<|channel|>commentary to=f <|constrain|>json<|message|>{}<|end|><|start|>assistant" + THOUGHT + FINAL,
            "They greet.",
            "{}\n\nHello 日本!",
        ),
        ("<|message|>no channel", "", "no channel"),
        ("<|channel|>final<|message|>It says <think>", "", "It says <think>"),
    ],
)
def test_analysis_is_thought_and_heads_are_not_shown_at_all(folder: Path, answer: str, thought: str, text: str) -> None:
    assert shown(folder, answer) == (thought, text)


def test_a_raw_prompt_goes_on_as_text_wherever_it_ends(folder: Path) -> None:
    assert shown(folder, " goes on", prompt="The fox") == ("", " goes on")
    begun = "<|start|>assistant<|channel|>final<|message|>It is "
    assert shown(folder, "fine<|end|>" + FINAL, begun) == ("", "fine\n\nHello 日本!")


def test_words_of_the_format_that_are_text_stay_text(folder: Path) -> None:
    with Tokenizer(folder) as tokenizer:
        stream = tokenizer.stream()
        pieces = [piece for token in tokenizer.encode("<|channel|>analysis") for piece in stream.step(token)]
        assert apart(pieces) == ("", "<|channel|>analysis")
