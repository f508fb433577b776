"""Solar's answers are messages: one that has a form has the head of one, behind a thought and without."""

from __future__ import annotations

import base64
import json

import pytest
from tokenizers import Tokenizer

from moeinf.text.grammar import Grammars
from moeinf.text.thoughts import SOLAR_TAGS
from tests.support.text_models import byte_level_tokenizer

PROMPT = "<|begin|>assistant"
CALLS = "<|tool_calls|>"
THOUGHT = f"<|think|>Hm.<|end|>{PROMPT}"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_level_tokenizer(["<|begin|>", "<|end|>", "<|think|>", "<|content|>", CALLS, "<|eos|>"])


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize(
    ("answer", "framed", "allowed"),
    [
        ("<|content|>[1]", False, True),
        (f"{THOUGHT}<|content|>[1]", False, True),
        (f"{THOUGHT}{CALLS}", False, True),
        ("[1]", False, False),
        ("<|think|>Hm.<|end|>[1]", False, False),
        (f"{THOUGHT}[1]", False, False),
        (f"{CALLS}[1]", True, True),
        (f"{THOUGHT}{CALLS}[1]", True, True),
        (f"<|think|>Hm.<|end|>{CALLS}[1]", True, False),
    ],
)
def test_an_answer_of_a_form_is_a_message(tokenizer: Tokenizer, answer: str, framed: bool, allowed: bool) -> None:
    grammars = Grammars(tokenizer, ids(tokenizer, "<|eos|>"))
    around = grammars.around_thoughts(ids(tokenizer, PROMPT), SOLAR_TAGS, () if framed else (CALLS,), framed=framed)
    form = {"prefix": CALLS if framed else "", "suffix": "", "schema": json.dumps({"type": "array"})}
    state = grammars.constrain(1, around, [form])
    for token in ids(tokenizer, answer):
        mask = base64.b64decode(state["mask"])
        if state["complete"] or not mask[token // 8] >> token % 8 & 1:
            assert not allowed
            return
        state = grammars.accept(1, token)
    assert allowed
