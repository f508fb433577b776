"""Kimi's tiktoken.model becomes a tokenizer.json that cuts texts as its ranks say."""

from __future__ import annotations

import base64
import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tokenizers import Regex, Tokenizer, pre_tokenizers

from moeinf.errors import CheckpointError
from moeinf.gguf.pretokenizers import PRE_TOKENIZERS
from moeinf.pull.pull import pull
from moeinf.pull.tiktoken_file import made_tokenizer
from tests.support.checkpoints import write_checkpoint
from tests.support.vocabularies import STRINGS, TEXT

CONFIG: dict[str, Any] = {
    "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
    "added_tokens_decoder": {"420": {"content": "[BOS]", "special": True}, "423": {"content": "<|sep|>"}},
}


@cache
def pieces() -> tuple[bytes, ...]:
    """All bytes, and the shortest parts of some words, with parts of theirs that are no pieces."""
    words = {word[:end] for text in TEXT for word in (b" " + w for w in text.encode().split()) for end in range(2, 7)}
    words |= {word[1:] for word in words if len(word) > 3}
    return (*(bytes([value]) for value in range(256)), *sorted(words, key=lambda word: (len(word), word))[:164])


def ranks(of: tuple[bytes, ...] | None = None) -> bytes:
    lines = (base64.b64encode(piece) + b" %d\n" % place for place, piece in enumerate(of or pieces()))
    return b"".join(lines)


def files(**changed: bytes) -> dict[str, bytes]:
    return {"tokenizer_config.json": json.dumps(CONFIG).encode(), "tiktoken.model": ranks()} | changed


@cache
def made() -> Tokenizer:
    return Tokenizer.from_buffer(made_tokenizer(files())["tokenizer.json"])


def slow(text: str) -> list[int]:
    """Words are cut by the published pattern; of a word the neighbours whose piece has the lowest rank are merged."""
    places, found = {piece: place for place, piece in enumerate(pieces())}, []
    [pattern, _] = PRE_TOKENIZERS["kimi-k2"].steps
    cut = pre_tokenizers.Split(Regex(pattern["pattern"]["Regex"]), "isolated")
    for word, _ in cut.pre_tokenize_str(text):
        whole = word.encode()
        parts = [whole] if whole in places else [bytes([value]) for value in whole]
        while True:
            pairs = enumerate(itertools.pairwise(parts))
            known = [(places[a + b], at) for at, (a, b) in pairs if a + b in places]
            if not known:
                break
            _, at = min(known)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        found += [places[part] for part in parts]
    return found


@given(STRINGS)
@settings(max_examples=300, deadline=None)
def test_texts_are_cut_as_the_ranks_say(text: str) -> None:
    ids = made().encode(text, add_special_tokens=False).ids
    assert ids == slow(text)
    assert made().decode(ids, skip_special_tokens=False) == text


def test_whole_texts_are_cut_as_the_ranks_say() -> None:
    for text in TEXT:
        ids = made().encode(text, add_special_tokens=False).ids
        assert ids == slow(text) and max(ids) > 255


def test_control_tokens_have_the_names_of_the_config_and_their_places() -> None:
    tokenizer = made()
    assert tokenizer.encode("a[BOS]b<|sep|>").ids == [*b"a", 420, *b"b", 423]
    assert tokenizer.id_to_token(421) == "<|reserved_token_421|>" and tokenizer.get_vocab_size() == 676
    assert tokenizer.decode([420, *b"a"]) == "a"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not every byte|gaps"),
        (ranks() + b"QUJD\n", "line 421"),
        (ranks() + b"Q 420\n", "line 421"),
        (ranks() + b"QUJD 3\n", "line 421"),
        (ranks() + b"QUJD 422\n", "gaps"),
        (ranks() + b"QQ== 420\n", "two"),
        (ranks(pieces()[1:]), "not every byte"),
    ],
)
def test_a_damaged_file_is_one_line(data: bytes, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        made_tokenizer(files(**{"tiktoken.model": data}))


def test_other_tokenizers_are_left_alone() -> None:
    assert made_tokenizer(files(**{"tokenizer.json": b"{}"})) == {}
    assert made_tokenizer(files(**{"tokenizer_config.json": b'{"tokenizer_class": "QWenTokenizer"}'})) == {}
    assert made_tokenizer({"tiktoken.model": ranks()}) == {}


def test_a_pulled_checkpoint_has_it(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    (folder / "tokenizer.json").unlink()
    for name, data in files().items():
        (folder / name).write_bytes(data)
    stored = pull(str(folder), home=tmp_path / "home")
    assert Tokenizer.from_file(str(stored.path / "tokenizer.json")).encode("a[BOS]").ids == [*b"a", 420]
