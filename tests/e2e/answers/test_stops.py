"""A control token that a client names as a stop ends an answer, though no text ever has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.pull.pull import pull
from tests.support.speaker import START, write_speaker

SAYS = {"assistant": "Hello", "Hello": START, START: "more", "more": "<|im_end|>"}
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}<|im_start|> assistant"


@pytest.mark.parametrize(("stop", "text"), [(START, " Hello"), ("<|im_end|>", " Hello more"), ("more", " Hello ")])
def test_a_stop_is_a_text_or_a_token(tmp_path: Path, stop: str, text: str) -> None:
    stored = pull(str(write_speaker(tmp_path / "speaker", SAYS, TEMPLATE, ())), home=tmp_path / "home")
    with Model(stored, RuntimeConfig()) as model:
        answer = model.generate("hi", model.params(stop=(stop,), num_predict=9))
    assert (answer.text, answer.finish_reason) == (text, "stop")
    assert answer.stop == (None if stop == "<|im_end|>" else stop)
