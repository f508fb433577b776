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


CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize(
    ("answer", "thought", "text", "calls"),
    [
        (THOUGHT + "<|start|>assistant" + CALL, "They greet.", "", ['f{"a": 1}']),
        (
            CALL + "<|end|><|start|>assistant" + FINAL.removeprefix("<|start|>assistant"),
            "",
            "Hello 日本!",
            ['f{"a": 1}'],
        ),
        (CALL + '<|message|>{"a": 2}', "", '{"a": 2}', ['f{"a": 1}']),
        (
            ' to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|message|>{"a": 2}',
            "",
            '{"a": 2}',
            ['f{"a": 1}'],
        ),
        (CALL + CALL, "", "", ['f{"a": 1}', 'f{"a": 1}']),
        ("<|channel|>commentary to=functions.f<|message|>", "", "", ["f{}"]),
        ("<|channel|>commentary to=functions.f<|message|>not JSON", "", "not JSON", []),
        (
            "<|channel|>final<|message|>See:<|end|><|start|>assistant" + CALL + " more",
            "",
            "See:\n\n more",
            ['f{"a": 1}'],
        ),
        ("<|channel|>analysis to=functions.f code<|message|>{}", "", "", ["f{}"]),
        ("<|channel|>commentary to=python<|message|>print()", "", "print()", []),
        ("<|channel|>commentary<|message|>I look it up.", "", "I look it up.", []),
        (' to=functions.f<|channel|>commentary json<|message|>{"a": 1}', "", "", ['f{"a": 1}']),
    ],
)
def test_a_message_to_a_function_is_a_call(
    folder: Path, answer: str, thought: str, text: str, calls: list[str]
) -> None:
    with Tokenizer(folder) as tokenizer:
        stream = tokenizer.stream(tokenizer.encode("<|start|>assistant", control_tokens=True), tools=TOOLS)
        ids = tokenizer.encode(answer, control_tokens=True)
        pieces = [*(piece for token in ids for piece in stream.step(token)), *stream.flush()]
    assert apart(pieces) == (thought, text)
    called: dict[int, str] = {}
    for piece in pieces:
        if piece.call:
            called[piece.call.index] = called.get(piece.call.index, piece.call.name or "") + piece.call.arguments
    assert [called[index] for index in range(len(called))] == calls


def test_the_end_of_a_call_ends_the_turn(model_folder: MakeFolder) -> None:
    folder = model_folder(tokenizer=byte_level_tokenizer([*SPECIALS, "<|call|>"]))
    with Tokenizer(folder) as tokenizer:
        assert tokenizer.token_id("<|call|>") in tokenizer.eos_ids
