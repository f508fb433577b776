"""Model folders with tiny tokenizers, made on the spot."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from moeinf.text.stream import Piece
from moeinf.text.tokenizer import TextStream

SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEXT = ["The quick brown fox jumps over the lazy dog.", "user assistant system hello world", "[INST] [/INST] You are"]


def byte_level_tokenizer(specials: list[str] = SPECIALS) -> Tokenizer:
    """Every other character than ASCII comes out as several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(
            vocab_size=340, special_tokens=list(specials), initial_alphabet=alphabet, show_progress=False
        ),
    )
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in specials])
    return tokenizer


def text_of(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces if not piece.thought)


def all_text(stream: TextStream, ids: Sequence[int]) -> str:
    return "".join(text_of(stream.step(token)) for token in ids) + text_of(stream.flush())


def apart(pieces: Iterable[Piece]) -> tuple[str, str]:
    """What was thought, and what was answered."""
    pieces = list(pieces)
    return "".join(piece.text for piece in pieces if piece.thought), text_of(pieces)


@pytest.fixture
def model_folder(tmp_path: Path) -> Callable[..., Path]:
    """make(template=None, config=..., generation=..., bos=False) -> folder"""

    def make(
        template: str | None = None,
        tokenizer: Tokenizer | None = None,
        bos: bool = False,
        config: dict[str, Any] | None = None,
        generation: dict[str, Any] | None = None,
        tokenizer_config: dict[str, Any] | None = None,
    ) -> Path:
        tokenizer = tokenizer or byte_level_tokenizer()
        if bos:
            tokenizer.post_processor = processors.TemplateProcessing(
                single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
            )
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        own = {"bos_token": "<s>", "eos_token": {"content": "</s>"}} if tokenizer_config is None else tokenizer_config
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(own))
        (tmp_path / "config.json").write_text(json.dumps(config or {}))
        if generation is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        if template is not None:
            (tmp_path / "chat_template.jinja").write_text(template)
        return tmp_path

    return make


@pytest.fixture
def shared_models(data_folder: Path) -> Path:
    """Real tokenizers and templates, which are too large for the repository."""
    return data_folder / "models"
