"""A model that follows each word by one other, so that a test decides what it says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from tests.support.checkpoints import CONFIG, random_tensors, write_checkpoint

START, END = "<|im_start|>", "<|im_end|>"


def write_speaker(
    folder: Path, says: Mapping[str, str], template: str, tags: Sequence[str], context: int = 256
) -> Path:
    """Writes a checkpoint whose layers add nothing: each word is followed by the one that `says` has for it.

    says: a word that is none of its keys is followed by any other. tags: words that are tokens even within others.
    context: in tokens, of which each word of a prompt is one.
    """
    words = list(dict.fromkeys(["[UNK]", START, END, "user", *tags, *says, *says.values()]))
    size = {"vocab_size": len(words), "max_position_embeddings": context}
    config = CONFIG | size | {"eos_token_id": words.index(END)}
    tensors = random_tensors(config)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight", "embed_tokens.weight", "lm_head.weight")):
            tensor.zero_()
        elif "norm" in name:
            tensor.fill_(1)
    embedding = tensors["model.embed_tokens.weight"]
    embedding[torch.arange(len(words)), torch.arange(len(words))] = 1
    for word, following in says.items():
        tensors["lm_head.weight"][words.index(following), words.index(word)] = 1
    write_checkpoint(folder, tensors, config)
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([START, END])
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": END}))
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": False}))
    return folder
