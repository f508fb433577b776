"""Model folders with tiny tokenizers, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

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


def write_text_model(
    folder: Path,
    template: str | None = None,
    tokenizer: Tokenizer | None = None,
    bos: bool = False,
    config: dict[str, Any] | None = None,
    generation: dict[str, Any] | None = None,
    tokenizer_config: dict[str, Any] | None = None,
) -> Path:
    """Writes what a model folder has beside weights, and returns the folder."""
    tokenizer = tokenizer or byte_level_tokenizer()
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    own = {"bos_token": "<s>", "eos_token": {"content": "</s>"}} if tokenizer_config is None else tokenizer_config
    (folder / "tokenizer_config.json").write_text(json.dumps(own))
    (folder / "config.json").write_text(json.dumps(config or {}))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
