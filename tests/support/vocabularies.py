"""Vocabularies as metadata of GGUF files have them, and tokenizers made of those."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from moeinf.errors import CheckpointError
from moeinf.gguf.gguf_tokenizer import tokenizer_files
from moeinf.gguf.header import Gguf, GgufFile
from moeinf.gguf.pretokenizers import PRE_TOKENIZERS
from tests.support.gguf_files import tokenizer_fields

TEXT = [
    "The quick brown fox doesn't jump; it's 1234567890 dogs that'll RUN.\n\n\tdef f(x):\n        return x**2  # done",
    "Ça va? Übergrößenträger 北京欢迎你 日本語のテキスト 한국어 ٣٤٥ नमस्ते e\u0301 \u00a0 🎉🎉",
]
STRINGS = st.text(max_size=40) | st.text(alphabet="ab'stlLDd019 \n\r\t.,!é\u0301日本한🎉-_<|>#(", max_size=40)


PIECES = ("▁", "a", "b", "c", "ab", "▁a", "bc", "abc", "▁ab", "▁abc", "▁▁", "ca", "▁b", "é")


def read(metadata: Mapping[str, Any]) -> Gguf:
    """As if a file had said so."""
    return Gguf((GgufFile(Path("x.gguf"), 0, 0),), {"general.architecture": "qwen3moe", **metadata}, {})


def built(metadata: Mapping[str, Any]) -> Tokenizer:
    return Tokenizer.from_buffer(tokenizer_files(read(metadata))["tokenizer.json"])


@cache
def trained(pre: str) -> Tokenizer:
    """A tokenizer of byte pairs as `pre` cuts texts, with added tokens in the middle and behind."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=PRE_TOKENIZERS[pre].whole_words))
    steps = json.dumps({"type": "Sequence", "pretokenizers": list(PRE_TOKENIZERS[pre].steps)})
    template = json.loads(tokenizer.to_str()) | {"pre_tokenizer": json.loads(steps)}
    tokenizer = Tokenizer.from_str(json.dumps(template))
    if PRE_TOKENIZERS[pre].composes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return tokenizer


def pieces(**more: Any) -> dict[str, Any]:
    """What files say of SentencePiece's byte pairs."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES, "<tool>", "[PAD]"]
    scores = [0.0] * 259 + [-float(i) for i in range(len(PIECES))] + [0.0, 0.0]
    types = [2, 3, 3] + [6] * 256 + [1] * len(PIECES) + [4, 5]
    found = {"model": "llama", "tokens": tokens, "scores": array("f", scores), "token_type": array("i", types)}
    return {f"tokenizer.ggml.{name}": value for name, value in (found | more).items()}


def refused(metadata: Mapping[str, Any], *words: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        tokenizer_files(read(metadata))
    line = str(caught.value)
    assert "\n" not in line and line.startswith("x.gguf") and all(word in line for word in words), line
    return line


def gpt2(**more: Any) -> dict[str, Any]:
    fields = tokenizer_fields(json.loads(trained("gpt-2").to_str()), "gpt-2", eos=1)
    return fields | {f"tokenizer.ggml.{name}": value for name, value in more.items()}
