"""What is shown of gpt-oss's answers, and what it is reminded of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from moeinf.text.tokenizer import Tokenizer
from tests.unit.text.conftest import apart, byte_level_tokenizer

MakeFolder = Callable[..., Path]
SPECIALS = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|constrain|>"]
THOUGHT = "<|channel|>analysis<|message|>They greet.<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>Hello 日本!"


@pytest.fixture
def folder(model_folder: MakeFolder) -> Path:
    return model_folder(tokenizer=byte_level_tokenizer(SPECIALS), tokenizer_config={"eos_token": "<|return|>"})


def shown(folder: Path, answer: str, prompt: str = "<|start|>assistant") -> tuple[str, str]:
    """What was thought, and what was answered."""
    with Tokenizer(folder) as tokenizer:
        stream = tokenizer.stream(tokenizer.encode(prompt, control_tokens=True))
        pieces = [piece for token in tokenizer.encode(answer, control_tokens=True) for piece in stream.step(token)]
        return apart([*pieces, *stream.flush()])


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


def test_the_published_template_gets_what_it_wants(shared_models: Path, tmp_path: Path) -> None:
    source = shared_models / "gpt-oss-20b"
    shutil.copy(source / "tokenizer.derived.json", tmp_path / "tokenizer.json")
    shutil.copy(source / "chat_template.openai-gpt-oss-120b.jinja", tmp_path / "chat_template.jinja")
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 200002}))
    thought, answer = shown(tmp_path, THOUGHT + FINAL)
    with Tokenizer(tmp_path) as tokenizer:
        chat = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": answer, "thinking": thought, "reasoning_content": thought},
            {"role": "user", "content": "more"},
        ]
        text, notes = tokenizer.render(chat)
        ends = tokenizer.eos_ids
    assert (
        text.endswith(
            "<|start|>user<|message|>hi<|end|>"
            "<|start|>assistant<|channel|>final<|message|>Hello 日本!<|end|>"
            "<|start|>user<|message|>more<|end|><|start|>assistant"
        )
        and not notes
    )
    assert 200002 in ends and 200007 not in ends, "<|return|> ends an answer, <|end|> a message of it"
