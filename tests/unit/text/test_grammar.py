"""Thoughts before an answer of a format are free, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Library

from moeinf.errors import TextError, UsageError
from moeinf.text.tokenizer import Tokenizer
from tests.support.text_models import byte_level_tokenizer, write_text_model

MakeFolder = Callable[..., Path]
SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
HARMONY = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|constrain|>", "<|call|>"]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}</think>"
SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": false}'
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
FORMS = [{"prefix": "", "schema": SCHEMA, "suffix": ""}]


def follow(
    tokenizer: Tokenizer,
    prompt: str,
    answer: str,
    tools: Sequence[Mapping[str, Any]] = (),
    forms: Sequence[Mapping[str, str]] = FORMS,
) -> str:
    """What of an answer behind a prompt the grammar takes, and `.` where it may end there, `!` where it must."""
    stream = tokenizer.stream(tokenizer.encode(prompt, control_tokens=True, bos=False), chat=True, tools=tools)
    mask, complete = stream.constrain(forms)
    taken = list[int]()
    for token in tokenizer.encode(answer, control_tokens=True, bos=False):
        if complete or not mask[token >> 3] >> (token & 7) & 1:
            break
        mask, complete = stream.accept(token)
        taken.append(token)
    ends = not complete and any(mask[end >> 3] >> (end & 7) & 1 for end in tokenizer.eos_ids)
    return tokenizer.decode(taken, skip_special=False) + ("!" if complete else "." if ends else "")


def with_tags(tags: Sequence[str] = ("<think>", "</think>")) -> Library:
    tokenizer = byte_level_tokenizer(SPECIALS)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    return tokenizer


@pytest.fixture(scope="module", params=["tokens", "letters"])
def thinker(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Tokenizer]:
    library = with_tags() if request.param == "tokens" else byte_level_tokenizer(SPECIALS)
    with Tokenizer(write_text_model(tmp_path_factory.mktemp("thinker"), TEMPLATE, library)) as tokenizer:
        yield tokenizer


@pytest.mark.parametrize(
    ("prompt", "answer", "taken"),
    [
        ("hi", '{"a": 1}', '{"a": 1}!'),
        ("hi", '<think>Let me {see} é</think>\n\n{"a": 1}', '<think>Let me {see} é</think>\n\n{"a": 1}!'),
        ("hi", "<think></think>{}", "<think></think>{}!"),
        ("hi", "Hello", ""),
        ("hi", "\n{}", ""),
        ("hi<think>", "\nLet me</think>{}", "\nLet me</think>{}!"),
        ("hi<think>\n", "x</think>Hello", "x</think>"),
        ("hi<think></think>", "\n\n{}", "\n\n{}!"),
        ("hi<think></think>", "{}", "{}!"),
        ("hi", '{"a": "x"}', '{"a": '),
        ("hi", '{"b": 1}', '{"'),
    ],
)
def test_a_thought_is_free_and_what_follows_is_of_the_form(
    thinker: Tokenizer, prompt: str, answer: str, taken: str
) -> None:
    assert follow(thinker, prompt, answer) == taken


def test_an_answer_does_not_end_inside_of_its_thought(thinker: Tokenizer) -> None:
    assert follow(thinker, "hi<think>", "Let me</s>") == "Let me"


def test_control_tokens_are_no_text_of_a_json_string(model_folder: MakeFolder) -> None:
    global_schema = [{"prefix": "", "schema": '{"type": "string"}', "suffix": ""}]
    with Tokenizer(model_folder(TEMPLATE, with_tags())) as tokenizer:
        stream = tokenizer.stream()
        stream.constrain(global_schema)
        mask, _ = stream.accept(tokenizer.encode('"', bos=False)[0])
        names = [*SPECIALS, "<think>", "</think>"]
        allowed = [name for name in names if mask[(i := tokenizer.token_id(name) or 0) >> 3] >> (i & 7) & 1]
        assert allowed == []


@pytest.fixture(scope="module")
def harmony(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokenizer]:
    library, ends = byte_level_tokenizer(HARMONY), {"eos_token_id": [4, 6]}  # return, call
    folder = write_text_model(tmp_path_factory.mktemp("harmony"), tokenizer=library, generation=ends)
    with Tokenizer(folder) as tokenizer:
        yield tokenizer


ANALYSIS = "<|channel|>analysis<|message|>They {greet}.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
TO_TOOL = "<|channel|>commentary to=functions.look <|constrain|>json<|message|>"


@pytest.mark.parametrize(
    ("prompt", "answer", "taken"),
    [
        ("<|start|>assistant", ANALYSIS + FINAL + "{}", ANALYSIS + FINAL + "{}!"),
        ("<|start|>assistant", ANALYSIS + ANALYSIS + FINAL + "{}", ANALYSIS + ANALYSIS + FINAL + "{}!"),
        ("<|start|>assistant", FINAL + "Hello", FINAL),
        (
            "<|start|>assistant",
            "<|channel|>final <|constrain|>json<|message|>{}",
            "<|channel|>final <|constrain|>json<|message|>{}!",
        ),
        ("<|start|>assistant", "<|channel|>commentary to=f", "<|channel|>"),
        ("<|start|>assistant", "<|channel|>analysis<|message|>They<|return|>", "<|channel|>analysis<|message|>They"),
        ("<|start|>assistant<|channel|>final<|message|>", "{}", "{}!"),
    ],
)
def test_of_gpt_oss_the_analysis_is_free_and_the_final_message_has_the_form(
    harmony: Tokenizer, prompt: str, answer: str, taken: str
) -> None:
    assert follow(harmony, prompt, answer) == taken


CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("tools", "forms", "answer", "taken"),
    [
        ([TOOL], FORMS, CALL, CALL + "."),
        ([TOOL], FORMS, "<think>x</think>\n\n" + CALL + CALL, "<think>x</think>\n\n" + CALL + CALL + "."),
        ([TOOL], FORMS, "{}", "{}!"),
        ([TOOL], FORMS, "I look", ""),
        ([], FORMS, CALL, ""),
        ([TOOL], [], CALL, CALL + "."),
        ([TOOL], [], "<think>x</think>" + CALL, "<think>x</think>" + CALL + "."),
        ([TOOL], [], "{}", ""),
        ([TOOL], [], "<think>x</think></s>", "<think>x</think>"),
    ],
)
@pytest.mark.parametrize("marks", [("<think>", "</think>"), ("<think>", "</think>", "<tool_call>", "</tool_call>")])
def test_where_there_are_tools_a_call_may_or_has_to_stand_for_the_answer(
    model_folder: MakeFolder,
    marks: Sequence[str],
    tools: Sequence[Mapping[str, Any]],
    forms: Sequence[Mapping[str, str]],
    answer: str,
    taken: str,
) -> None:
    template = TEMPLATE + "{% for tool in tools or [] %}<tool_call>{{ tool }}{% endfor %}"
    with Tokenizer(model_folder(template, with_tags(marks))) as tokenizer:
        assert follow(tokenizer, "hi", answer, tools, forms) == taken


@pytest.mark.parametrize(
    ("answer", "taken"),
    [
        (TO_TOOL + "{}<|call|>", TO_TOOL + "{}<|call|>!"),
        (ANALYSIS + TO_TOOL + "{}", ANALYSIS + TO_TOOL + "{}."),
        (
            " to=functions.look<|channel|>commentary<|message|>{}",
            " to=functions.look<|channel|>commentary<|message|>{}.",
        ),
        ("<|channel|>commentary<|message|>I look", "<|channel|>commentary"),
        (FINAL + "{}", FINAL + "{}!"),
    ],
)
def test_gpt_oss_may_send_a_message_to_a_tool_instead(harmony: Tokenizer, answer: str, taken: str) -> None:
    assert follow(harmony, "<|start|>assistant", answer, [TOOL]) == taken


def test_without_tools_there_is_nothing_to_call(harmony: Tokenizer) -> None:
    with pytest.raises(UsageError, match="no tools to call"):
        harmony.stream(harmony.encode("<|start|>assistant", control_tokens=True, bos=False)).constrain([])


def test_a_tokenizer_whose_bytes_are_unknown_is_refused(model_folder: MakeFolder) -> None:
    library = Library(models.WordLevel({"[UNK]": 0, "{": 1}, unk_token="[UNK]"))
    with (
        Tokenizer(model_folder(tokenizer=library)) as tokenizer,
        pytest.raises(TextError, match="bytes of this model's tokens are not known"),
    ):
        tokenizer.stream().constrain(FORMS)


def test_bytes_of_tokens_are_those_of_a_character_even_where_it_is_split(harmony: Tokenizer) -> None:
    ids = harmony.encode("<|start|>日本 go", control_tokens=True, bos=False)
    assert b"".join(harmony.token_bytes(ids)) == "<|start|>日本 go".encode()
