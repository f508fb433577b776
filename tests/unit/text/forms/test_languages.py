"""Answers are held to schemas, choices, regular expressions and grammars, in which every letter is a letter."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from moeinf.errors import UsageError
from moeinf.sampling.constraint import AnswerFormat, FramedJson, Language, held_to, one_of
from moeinf.text.tokenizer import Tokenizer
from tests.support.text_models import byte_level_tokenizer, write_text_model

SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]"]
WORDS = ["<think>", "</think>", "<tool_call>"]  # tokens of the vocabulary that are no special ones
MakeFolder = Callable[..., Path]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokenizer]:
    library = byte_level_tokenizer(SPECIALS)
    library.add_tokens([AddedToken(word, special=False, normalized=False) for word in WORDS])
    with Tokenizer(write_text_model(tmp_path_factory.mktemp("model"), tokenizer=library)) as made:
        yield made


def follow(tokenizer: Tokenizer, format: AnswerFormat, answer: str) -> str:
    """What of the letters of an answer the format takes, and `.` where it may end there, `!` where it must."""
    constraint = held_to(tokenizer.stream(), format, tokenizer.num_ids)
    letters, ends = tokenizer.token_bytes(range(tokenizer.num_ids)), tokenizer.eos_ids
    special = {tokenizer.token_id(name) for name in SPECIALS + WORDS}
    left, whole = answer.encode(), answer.encode()
    while not constraint.complete:
        fitting = [i for i in constraint.allowed().tolist() if i not in special and left.startswith(letters[i])]
        if not left or not fitting:
            break
        token = max(fitting, key=lambda i: len(letters[i]))
        constraint.accept(token)
        left = left[len(letters[token]) :]
    may_end = not constraint.complete and bool(ends & set(constraint.allowed().tolist()))
    taken = whole[: len(whole) - len(left)].decode(errors="replace")
    return taken + ("!" if constraint.complete else "." if may_end else "")


@pytest.mark.parametrize(
    ("format", "answer", "taken"),
    [
        (Language("regex", "a+b"), "aab", "aab!"),
        (Language("regex", "^[0-9]{2}/x?$"), "12/x", "12/x!"),
        (Language("regex", "é|日本"), "日本", "日本!"),
        (Language("regex", "a+b"), "aac", "aa"),
        (one_of(["yes", "no"]), "no", "no!"),
        (one_of(["a", "ab"]), "a", "a."),
        (one_of(['say "é"\n', "😀\\"]), 'say "é"\n', 'say "é"\n!'),
        (one_of(['say "é"\n', "😀\\"]), "😀\\", "😀\\!"),
        (Language("lark", 'start: "a" WORD\nWORD: /[b-d]+/'), "abcd", "abcd."),
        (Language("lark", 'start: "x" obj\nobj: %json {"type": "integer"}'), "x12", "x12."),
        (Language("gbnf", 'root ::= "yes" | "no" num\nnum ::= [0-9]+ "!"'), "no12!", "no12!!"),
        (Language("gbnf", 'root ::= item+\nitem ::= "- " [^\\n]+ "\\n"'), "- a\n- b\n", "- a\n- b\n."),
    ],
)
def test_an_answer_is_held_to_a_language(tokenizer: Tokenizer, format: AnswerFormat, answer: str, taken: str) -> None:
    assert follow(tokenizer, format, answer) == taken


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


FORCED: Mapping[str, Callable[[str], tuple[Any, str]]] = {  # formats that leave an answer no choice, and that answer
    "choice": lambda text: (one_of([text]), text),
    "lark": lambda text: (Language("lark", f"start: {quoted(text)}"), text),
    "gbnf": lambda text: (Language("gbnf", f"root ::= {quoted(text)}"), text),
    "enum": lambda text: ({"enum": [text]}, quoted(text)),
    "const": lambda text: ({"const": text}, quoted(text)),
    "property": lambda text: (
        {"type": "object", "properties": {text: {"type": "null"}}, "required": [text], "additionalProperties": False},
        f"{{{quoted(text)}: null}}",
    ),
    "framed": lambda text: ([FramedJson({"const": text}, "f(", ")")], f"f({quoted(text)})"),
}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([*SPECIALS, *WORDS, "a", " b", "<", "|>", "é"]), min_size=1, max_size=4).map("".join))
@pytest.mark.parametrize("kind", FORCED)
def test_letters_of_control_tokens_are_written_as_letters(tokenizer: Tokenizer, kind: str, text: str) -> None:
    format, answer = FORCED[kind](text)
    assert follow(tokenizer, format, answer) == answer + "!"


@pytest.mark.parametrize(
    ("format", "said"),
    [
        (Language("regex", "a(?=b)"), "look-ahead"),
        (Language("regex", "(a"), "unclosed group.*change the grammar"),
        (Language("lark", "begin: /a/"), "start"),
        (Language("lark", "start: <[3]>"), "names no tokens"),
        (Language("lark", 'start: "<" <|im_end|>'), "names no tokens"),
        (Language("gbnf", "root = x"), "cannot be read"),
        (Language("gbnf", "root ::= " + "(" * 20000), "nested too deeply|cannot be read"),
        (Language("regex", "a" * 70000), "70000 bytes"),
        ({"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}, "change the schema"),
    ],
)
def test_a_language_that_cannot_be_followed_is_refused_before_the_answer(
    tokenizer: Tokenizer, format: AnswerFormat, said: str
) -> None:
    with pytest.raises(UsageError, match=f"(?s)^format: .*({said})"):
        held_to(tokenizer.stream(), format, tokenizer.num_ids)


@pytest.mark.parametrize("choices", [[], "yes", ["yes", 1], [""]])
def test_choices_are_texts(choices: Any) -> None:
    with pytest.raises(UsageError, match="choices are a list of texts"):
        one_of(choices)


def test_a_thought_may_come_before_any_language(model_folder: MakeFolder) -> None:
    library = byte_level_tokenizer(SPECIALS)
    library.add_tokens([AddedToken(word, special=False, normalized=False) for word in WORDS])
    template = "{% for m in messages %}{{ m.content }}{% endfor %}</think>"
    with Tokenizer(model_folder(template, library)) as tokenizer:
        constraint = held_to(tokenizer.stream(chat=True), one_of(["yes"]), tokenizer.num_ids)
        for token in tokenizer.encode("<think>well</think>\n\nyes", control_tokens=True, bos=False):
            assert token in constraint.allowed().tolist()
            constraint.accept(token)
        assert constraint.complete
