"""A tiny encoder-decoder model in a store, with the words that it knows, and the reference over the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from moeinf.config.pull_options import PullOptions
from moeinf.pull.pull import pull
from moeinf.store.library import StoredModel
from tests.support.pairs.translators import Pair

GAP = "<extra_id_0>"

LANGUAGES = {"eng_Latn": 95, "fra_Latn": 96}

TEXT = "w5 w17 w33 w88 w41 w60"


class Stored:
    """A tiny model in a store, and the reference over the same weights."""

    def __init__(self, config: dict[str, Any], folder: Path, asked: dict[str, Any]) -> None:
        self.checkpoint = folder / "checkpoint"
        self.pair = Pair(config, self.checkpoint)
        write_tokenizer(self.checkpoint, config["eos_token_id"])
        (self.checkpoint / "generation_config.json").write_text(json.dumps(asked))
        stored = pull(str(self.checkpoint), PullOptions(name="tiny"), home=folder / "home")
        assert isinstance(stored, StoredModel)
        self.stored = stored

    def theirs(self, source: list[int], **options: Any) -> list[int]:
        """What the reference answers, behind the decoder's first token."""
        with torch.inference_mode():
            answer = self.pair.theirs.generate(torch.tensor([source]), do_sample=False, **options)[0]
        return [int(token) for token in answer[1:]]


def write_tokenizer(folder: Path, eos_id: int) -> None:
    """w<i> is token i; the end of a sequence and the languages are special."""
    vocabulary = {f"w{i}": i for i in range(3, 94)} | {"<0>": 0, "<1>": 1, "<2>": 2, GAP: 94} | LANGUAGES
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<0>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([f"<{i}>" for i in range(3)] + [GAP, *LANGUAGES])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": f"<{eos_id}>"}))
