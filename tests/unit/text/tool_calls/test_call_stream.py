"""What is thought is no call, later thoughts are thoughts, and what quotes either is text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from moeinf.text.text_stream import Piece
from moeinf.text.thoughts import Tags
from moeinf.text.tool_calls.choice import find_syntax
from moeinf.text.tool_calls.open_stream import open_stream
from tests.support.text_models import SPECIALS, byte_level_tokenizer
from tests.support.tool_families import BY_NAME, TOOLS

KINDS = ["letters", "tokens", "control tokens"]
THINK: Tags = ("<think>", "</think>")
CALL = '<tool_call>{"name": "note", "arguments": {}}</tool_call>'
OTHER = '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>'
ASKED, OPENED, CLOSED = "<|im_start|>assistant\n", "<think>\n", "<think>\n\n</think>\n\n"


@cache
def tokenizer_of(kind: str) -> Library:
    """One whose tags and marks are letters, tokens, or of which the tags are control tokens, as in Mistral."""
    tokenizer = byte_level_tokenizer()
    if kind != "letters":
        special = kind == "control tokens"
        add = tokenizer.add_special_tokens if special else tokenizer.add_tokens
        add([AddedToken(tag, special=special, normalized=False) for tag in THINK])
        tokenizer.add_tokens(
            [AddedToken(mark, special=False, normalized=False) for mark in ("<tool_call>", "</tool_call>")]
        )
    return tokenizer


def told(
    kind: str, answer: str, prompt: str = ASKED, *, tools: bool = True, cut: bool = False, tags: Tags | None = THINK
) -> tuple[str, str, list[str]]:
    """What was thought, what was said, and the names of the tools that were called."""
    tokenizer = tokenizer_of(kind)
    stream = open_stream(
        tokenizer,
        tokenizer.encode(prompt).ids,
        skip_special=True,
        tags=tags,
        syntax=find_syntax(BY_NAME["qwen3"].template),
        tools=TOOLS if tools else [],
    )
    pieces = [*(piece for token in tokenizer.encode(answer).ids for piece in stream.step([token]))]
    pieces += stream.flush(cut=cut)
    assert "\ufdd1" not in str(pieces)
    indices = [piece.call.index for piece in pieces if piece.call and piece.call.name is not None]
    assert indices == list(range(len(indices)))
    return joined(pieces, thought=True), joined(pieces, thought=False), names_in(pieces)


def joined(pieces: Sequence[Piece], *, thought: bool) -> str:
    return "".join(piece.text for piece in pieces if piece.thought == thought)


def names_in(pieces: Sequence[Piece]) -> list[str]:
    return [piece.call.name for piece in pieces if piece.call and piece.call.name is not None]


@pytest.mark.parametrize(
    ("answer", "calls"),
    [
        (f"<think>I call:\n{CALL}", ["note"]),
        (f"<think>I call:\n{CALL}\n</think>\n", ["note"]),
        (f"<think>I call:\n{CALL}{OTHER}", ["note", "get_weather"]),
        (f"<think>I could {CALL} but rather {OTHER}", ["get_weather"]),
        (f"<think>I could {CALL} but rather ask.", []),
        (f"<think>I could {CALL} but rather ask.</think>", []),
        (f"<think>I could {CALL} but rather ask.</think>Where?", []),
        (f"<think>I could {CALL}</think>Where?", []),
        (f"<think>I could {CALL}</think>{OTHER}", ["get_weather"]),
        ('<think>I could <tool_call>{"name": "unknown"}</tool_call>', []),
        ('<think>I could <tool_call>{"name": "note", "arguments": {"a": 1 2}}</tool_call>', []),
        ('<think>I could <tool_call>{"name": "note", "arguments": {"a', []),
        (f"Well.\n<think>I could {CALL} but rather ask.</think>Where?", []),
        (f"{CALL}<think>I could {OTHER}</think>", ["note"]),
    ],
)
def test_a_call_that_a_thought_considers_is_none(answer: str, calls: list[str]) -> None:
    outside = {
        f"<think>I could {CALL}</think>{OTHER}": ["get_weather"],
        f"{CALL}<think>I could {OTHER}</think>": ["note"],
    }
    for kind in KINDS[1:]:
        assert told(kind, answer)[2] == calls
        assert told(kind, answer, cut=True)[2] == outside.get(answer, []), "nobody knows how it would have gone on"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("prompt", "answer", "thought", "said"),
    [
        (ASKED, "<think>a</think>see <think>b</think> this", "a\n\nb", "see this"),
        (ASKED, "<think>a</think>\n\n<think>\nb\n</think>\n\nsee", "a\n\nb", "see"),
        (ASKED, "<think>a</think>See.\n\n<think>b</think>\n\nSo.<think>c</think>\n", "a\n\nb\n\nc", "See.\n\nSo."),
        (ASKED, "Hello <think>b</think>", "b", "Hello"),
        (CLOSED, "<think>b</think>Hello", "b", "Hello"),
        (CLOSED, "Hello\n<think>b</think>world", "b", "Hello\nworld"),
        (OPENED, "a</think>Hello\n<think>b</think>world", "a\n\nb", "Hello\nworld"),
        (OPENED, "<think>a</think>Hello", "a", "Hello"),
        (OPENED, "\n<think>\na <think> b</think>Hello", "a <think> b", "Hello"),
        (ASKED, "<think><think>a</think>Hello", "a", "Hello"),
        (ASKED, "<think>a</think>\n</think>\n\nHello", "a", "Hello"),
        (CLOSED, "</think>Hello", "", "Hello"),
        (CLOSED, "< Hello", "", "< Hello"),
        (ASKED, "<think>a</think><", "a", "<"),
    ],
)
def test_later_thoughts_are_thoughts(kind: str, prompt: str, answer: str, thought: str, said: str) -> None:
    if kind == "control tokens":
        thought = thought.replace("<think>", "")
    for tools in (True, False):
        assert told(kind, answer, prompt, tools=tools) == (thought, said, [])


@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize(
    "answer",
    [
        "Models write `<think>` and `</think>` around thoughts.",
        "Like so:\n```\n<think>\nHm.\n</think>\n```\nThat is all.",
        "Like so:\n```xml\n<a>\n  <think>Hm.</think>\n</a>\n```",
        'The tags "<think>Hm.</think>" are known.',
        "Three tags:\n<think>\n<step>\n<thought>",
        "It ends with </think> alone.",
        "Thinks <thinking>Hm.</thinking>",
    ],
)
def test_tags_that_are_quoted_or_never_closed_are_text(kind: str, answer: str) -> None:
    assert told(kind, answer) == ("", answer, [])
    assert told(kind, f"<think>a</think>{answer}") == ("a", answer, [])
    assert told(kind, answer, tools=False, tags=THINK) == ("", answer, [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_thought_that_is_cut_is_one(kind: str) -> None:
    assert told(kind, "Well.\n<think>I could ask", cut=True) == ("I could ask", "Well.", [])
    assert told(kind, f"Well.\n<think>I could {CALL}", cut=True)[1:] == ("Well.", [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_may_hold_tags_and_an_answer_calls_behind_thoughts(kind: str) -> None:
    answer = '<think>a</think>See.\n<tool_call>{"name": "note", "arguments": {"text": "<think>b</think>"}}</tool_call>'
    tokenizer = tokenizer_of(kind)
    stream = open_stream(
        tokenizer,
        tokenizer.encode(ASKED).ids,
        skip_special=True,
        tags=THINK,
        syntax=find_syntax(BY_NAME["qwen3"].template),
        tools=TOOLS,
    )
    pieces = [*(piece for token in tokenizer.encode(answer).ids for piece in stream.step([token])), *stream.flush()]
    arguments = "".join(piece.call.arguments for piece in pieces if piece.call)
    assert (joined(pieces, thought=True), joined(pieces, thought=False)) == ("a", "See.")
    assert arguments == '{"text": "<think>b</think>"}'
    assert told(kind, f"<think>a</think>See.\n<think>b</think>\n{CALL}\n<think>c</think>{OTHER}") == (
        "a\n\nb\n\nc",
        "See.",
        ["note", "get_weather"],
    )


def test_marks_that_only_the_vocabulary_has_count_as_letters() -> None:
    """Converted files have <tool_call> among the ordinary tokens, which no text is ever made into."""
    made = byte_level_tokenizer()
    vocabulary = made.get_vocab()
    words = {**vocabulary, **{word: len(vocabulary) + i for i, word in enumerate(("<tool_call>", *THINK))}}
    tokenizer = Library(models.BPE(words, [], unk_token=None))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    assert tokenizer.token_to_id("<tool_call>") is not None
    stream = open_stream(
        tokenizer,
        tokenizer.encode(ASKED).ids,
        skip_special=True,
        tags=THINK,
        syntax=find_syntax(BY_NAME["qwen3"].template),
        tools=TOOLS,
    )
    ids = tokenizer.encode(f"<think>Hm.</think>So {CALL}").ids
    pieces = [*(piece for token in ids for piece in stream.step([token])), *stream.flush()]
    assert (joined(pieces, thought=True), joined(pieces, thought=False), names_in(pieces)) == ("Hm.", "So", ["note"])
    stream = open_stream(
        tokenizer, [], skip_special=True, tags=THINK, syntax=find_syntax(BY_NAME["qwen3"].template), tools=TOOLS
    )
    ids = [words["<tool_call>"], *tokenizer.encode(CALL.removeprefix("<tool_call>")).ids]
    assert names_in([*(piece for token in ids for piece in stream.step([token])), *stream.flush()]) == ["note"]


@pytest.mark.parametrize("added", [False, True])
def test_letters_of_a_mark_count_where_the_tokenizer_makes_no_token_of_them(added: bool) -> None:
    """Though the vocabulary has one, as an ordinary token, or as one that its normalizer keeps from being found."""
    tokenizer = Library(
        models.BPE({**byte_level_tokenizer().get_vocab(), "<TOOL_CALL>": 5000, "<tool_call>": 5001}, [])
    )
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    if added:
        tokenizer.normalizer = normalizers.Lowercase()
        tokenizer.add_tokens([AddedToken("<TOOL_CALL>", special=False, normalized=False)])
    answer = tokenizer.encode(CALL).ids
    assert not {5000, 5001} & set(answer)
    stream = open_stream(
        tokenizer, [], skip_special=True, tags=None, syntax=find_syntax(BY_NAME["qwen3"].template), tools=TOOLS
    )
    assert names_in([*stream.step(answer), *stream.flush()]) == ["note"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_is_cut_leaves_no_marks(kind: str) -> None:
    ids = tokenizer_of(kind).encode(f"So: {CALL}").ids
    for end in range(len(tokenizer_of(kind).encode("So: ").ids), len(ids) - 2):
        stream = open_stream(
            tokenizer_of(kind),
            [],
            skip_special=True,
            tags=THINK,
            syntax=find_syntax(BY_NAME["qwen3"].template),
            tools=TOOLS,
        )
        pieces = [*stream.step(ids[:end]), *stream.flush(cut=True)]
        assert joined(pieces, thought=False).strip() == "So:"
