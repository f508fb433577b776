"""A length tells how many tokens a text has at least, whatever the tokenizer leaves out or takes together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from moeinf.text.token_shape import TokenShape, token_shape
from tests.support.text_models import byte_level_tokenizer

# Letters that a normalizer takes together, parts of control tokens, and much space.
LETTERS = "a e\u0301\u1100\u1161\u11a8\u1f82\u03b1\u0313\u0300\u0345\U0001d400 \t\n"
PARTS = st.sampled_from([*LETTERS, "<|end|>", "The quick", " " * 50]) | st.text(max_size=20)
TEXTS = st.lists(PARTS).map("".join)


def byte_level(normalizer: normalizers.Normalizer | None = None, **end: bool) -> Tokenizer:
    tokenizer = byte_level_tokenizer()
    tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens([AddedToken("<|end|>", normalized=False, **end)])
    return tokenizer


def by_bytes(model: models.Model) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


BYTES = [f"<0x{value:02X}>" for value in range(256)]
WORDS = ["<unk>", *BYTES, "▁", "a", "▁a"]
KNOWN: dict[str, Callable[[], Tokenizer]] = {
    "byte level": byte_level,
    "NFC": lambda: byte_level(normalizers.NFC()),
    "NFKC": lambda: byte_level(normalizers.NFKC()),
    "swallows before": lambda: byte_level(lstrip=True),
    "swallows behind": lambda: byte_level(normalizers.NFD(), rstrip=True),
    "BPE with bytes": lambda: by_bytes(
        models.BPE({word: at for at, word in enumerate(WORDS)}, [("▁", "a")], byte_fallback=True, unk_token="<unk>")
    ),
    "unigram with bytes": lambda: by_bytes(models.Unigram([(word, -1.0) for word in WORDS], 0, byte_fallback=True)),
}


@pytest.fixture(scope="module")
def known() -> dict[str, Tokenizer]:
    return {name: make() for name, make in KNOWN.items()}


@pytest.mark.parametrize("name", KNOWN)
@settings(max_examples=60, deadline=None)
@given(text=TEXTS, special=st.booleans())
def test_no_text_has_fewer_tokens(known: dict[str, Tokenizer], name: str, text: str, special: bool) -> None:
    tokenizer = known[name]
    tokenizer.encode_special_tokens = not special
    shape = token_shape(tokenizer)
    assert shape is not None
    assert shape.least_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("name", KNOWN)
def test_a_long_text_has_many(known: dict[str, Tokenizer], name: str) -> None:
    shape = token_shape(known[name])
    assert shape is not None and shape.least_tokens("a" * 1_000_000) > 1000


def without_a_byte() -> Tokenizer:
    vocabulary = {word: at for at, word in enumerate(WORDS) if word != "<0x61>"}
    return by_bytes(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>", fuse_unk=True))


def split(behavior: str) -> Tokenizer:
    tokenizer = byte_level()
    parts = [pre_tokenizers.Split(Regex("a+"), behavior), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    return tokenizer


UNKNOWN: dict[str, Callable[[], Tokenizer]] = {
    "unknown letters": lambda: Tokenizer(models.BPE({"<unk>": 0, "b": 1}, [], unk_token="<unk>", fuse_unk=True)),
    "left out letters": lambda: Tokenizer(models.BPE({"b": 0}, [])),
    "a byte that is missing": without_a_byte,
    "unknown words": lambda: Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")),
    "unigram": lambda: Tokenizer(models.Unigram([("<unk>", 0.0), ("b", -1.0)], 0)),
    "split that removes": lambda: split("removed"),
    "normalizer that removes": lambda: byte_level(normalizers.Replace(Regex("a+"), "")),
    "normalizer that shortens": lambda: byte_level(normalizers.Replace("aa", "a")),
    "normalizer of unknown effect": lambda: byte_level(normalizers.BertNormalizer()),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_where_one_token_may_be_any_text_nothing_is_told(name: str) -> None:
    assert token_shape(UNKNOWN[name]()) is None


def test_a_split_that_keeps_its_text_is_known() -> None:
    assert token_shape(split("isolated")) == token_shape(byte_level())


def test_space_counts_where_no_token_swallows_it() -> None:
    assert TokenShape(4, spaces=True).least_tokens(" " * 9) == 2
    assert TokenShape(4, spaces=False).least_tokens(" " * 9) == 0
