"""What is shown of gpt-oss's answers, and what it is reminded of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from moeinf.generate.harmony import without_thoughts
from moeinf.generate.tokenizer import Tokenizer
from tests.unit.generate.conftest import byte_level_tokenizer

MakeFolder = Callable[..., Path]
SPECIALS = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|constrain|>"]
THOUGHT = "<|channel|>analysis<|message|>They greet.<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>Hello 日本!"


@pytest.fixture
def folder(model_folder: MakeFolder) -> Path:
    return model_folder(tokenizer=byte_level_tokenizer(SPECIALS), tokenizer_config={"eos_token": "<|return|>"})


def shown(folder: Path, answer: str, prompt: str = "<|start|>assistant") -> str:
    with Tokenizer(folder) as tokenizer:
        stream = tokenizer.stream(tokenizer.encode(prompt, control_tokens=True))
        pieces = [stream.step(token) for token in tokenizer.encode(answer, control_tokens=True)]
        return "".join(pieces) + stream.flush()


@pytest.mark.parametrize(("answer", "text"), [
    (THOUGHT + FINAL, "<think>\nThey greet.\n</think>\n\nHello 日本!"),
    ("<|channel|>final<|message|>Hello", "Hello"),
    ("<|channel|>analysis<|message|>They", "<think>\nThey"),
    ("<|channel|>ana", ""),
    (THOUGHT + "<|start|>assistant" + THOUGHT + FINAL,
     "<think>\nThey greet.\n\nThey greet.\n</think>\n\nHello 日本!"),
    ("<|channel|>commentary to=f <|constrain|>json<|message|>{}<|end|><|start|>assistant" + THOUGHT + FINAL,
     "{}\n\n<think>\nThey greet.\n</think>\n\nHello 日本!"),
    ("<|message|>no channel", "no channel"),
])
def test_analysis_is_shown_as_thoughts_and_heads_not_at_all(folder: Path, answer: str, text: str) -> None:
    assert shown(folder, answer) == text


def test_a_raw_prompt_goes_on_as_text_wherever_it_ends(folder: Path) -> None:
    assert shown(folder, " goes on", prompt="The fox") == " goes on"
    begun = "<|start|>assistant<|channel|>final<|message|>It is "
    assert shown(folder, "fine<|end|>" + FINAL, begun) == "fine\n\nHello 日本!"


def test_words_of_the_format_that_are_text_stay_text(folder: Path) -> None:
    with Tokenizer(folder) as tokenizer:
        stream = tokenizer.stream()
        assert "".join(map(stream.step, tokenizer.encode("<|channel|>analysis"))) == "<|channel|>analysis"


def test_the_assistant_is_reminded_of_its_answers_alone() -> None:
    said = "<think>\nThey greet.\n</think>\n\nHello"
    turns = [{"role": role, "content": said} for role in ("user", "assistant")]
    assert [turn["content"] for turn in without_thoughts(turns)] == [said, "Hello"]
    assert without_thoughts([{"role": "assistant", "content": "<think>\nThey gr"}])[0]["content"] == ""


def test_the_published_template_gets_what_it_wants(shared_models: Path, tmp_path: Path) -> None:
    source = shared_models / "gpt-oss-20b"
    shutil.copy(source / "tokenizer.derived.json", tmp_path / "tokenizer.json")
    shutil.copy(source / "chat_template.openai-gpt-oss-120b.jinja", tmp_path / "chat_template.jinja")
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 200002}))
    answer = shown(tmp_path, THOUGHT + FINAL)
    with Tokenizer(tmp_path) as tokenizer:
        chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": answer},
                {"role": "user", "content": "more"}]
        text, notes = tokenizer.render(chat)
        ends = tokenizer.eos_ids
    assert text.endswith("<|start|>user<|message|>hi<|end|>"
                         "<|start|>assistant<|channel|>final<|message|>Hello 日本!<|end|>"
                         "<|start|>user<|message|>more<|end|><|start|>assistant") and not notes
    assert 200002 in ends and 200007 not in ends, "<|return|> ends an answer, <|end|> a message of it"
