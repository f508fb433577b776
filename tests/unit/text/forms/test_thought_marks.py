"""The tokens by which thoughts are known, as each kind of model writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moeinf.errors import UsageError
from moeinf.text.forms.thought_marks import ThoughtMarks
from moeinf.text.tokenizer import Tokenizer
from tests.support.text_models import byte_level_tokenizer

MakeFolder = Callable[..., Path]
HARMONY = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|constrain|>"]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}<|im_start|>assistant\n<think>\n{# </think> #}"


def marks(folder: Path, prompt: str, **kind: Any) -> tuple[ThoughtMarks | None, Tokenizer]:
    tokenizer = Tokenizer(folder)
    return tokenizer.stream(tokenizer.encode(prompt, control_tokens=True), **kind).thought_marks(), tokenizer


@pytest.mark.parametrize(("prompt", "opened"), [("a<think>", True), ("a<think>\n", True), ("a", False)])
def test_tags_that_are_tokens(model_folder: MakeFolder, prompt: str, opened: bool) -> None:
    config = {"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}
    folder = model_folder(
        tokenizer=byte_level_tokenizer(["<|im_start|>", "<|im_end|>", "<think>", "</think>"]), tokenizer_config=config
    )
    found, tokenizer = marks(folder, prompt, chat=True)
    with tokenizer:
        opens, closes = tokenizer.token_id("<think>"), tokenizer.token_id("</think>")
        assert opens is not None and closes is not None
        assert found == ThoughtMarks((opens,), closes, (closes,), opened)
        assert marks(folder, prompt, chat=False)[0] is None, "a raw prompt has no thoughts"
        begun = marks(folder, "a<think>Hm, so", chat=True, begun="<think>Hm, so")[0]
        assert begun is not None and begun.opened


def test_tags_in_letters_cannot_be_ended(model_folder: MakeFolder) -> None:
    config = {"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}
    folder = model_folder(tokenizer=byte_level_tokenizer(["<|im_start|>", "<|im_end|>"]), tokenizer_config=config)
    with pytest.raises(UsageError, match="leave the budget out"):
        marks(folder, "a", chat=True)


def test_the_analysis_of_gpt_oss(model_folder: MakeFolder) -> None:
    folder = model_folder(tokenizer=byte_level_tokenizer(HARMONY), tokenizer_config={"eos_token": "<|return|>"})
    found, tokenizer = marks(folder, "<|start|>assistant")
    with tokenizer:
        assert found is not None and not found.opened
        texts = [tokenizer.decode(list(ids), skip_special=False) for ids in (found.opens, [found.closes], found.ends)]
        assert texts == [
            "<|channel|>analysis<|message|>",
            "<|end|>",
            "<|end|><|start|>assistant<|channel|>final<|message|>",
        ]


def test_a_model_that_does_not_think_has_none(model_folder: MakeFolder) -> None:
    config = {"chat_template": "{{ messages[0].content }}", "eos_token": "<|im_end|>"}
    folder = model_folder(tokenizer=byte_level_tokenizer(["<|im_end|>"]), tokenizer_config=config)
    assert marks(folder, "a", chat=True)[0] is None
