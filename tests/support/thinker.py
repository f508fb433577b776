"""A model that says the same words whatever it is asked, after the thoughts that its template lets it have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from tests.support.checkpoints import CONFIG, random_tensors, write_checkpoint

WORDS = (
    "[UNK]",
    "<|im_start|>",
    "<|im_end|>",
    "user",
    "assistant",
    "<think>",
    "</think>",
    "Let",
    "me",
    "see",
    "Hello",
    "there",
)
SAYS: Mapping[str, str] = {
    "assistant": "<think>",
    "<think>": "Let",
    "Let": "me",
    "me": "see",
    "see": "</think>",
    "</think>": "Hello",
    "Hello": "there",
    "there": "<|im_end|>",
}
TEMPLATE = (
    "{% for m in messages %}<|im_start|> {{ m.role }} {{ m.content }} <|im_end|> {% endfor %}"
    "<|im_start|> assistant"
    "{% if enable_thinking is defined and not enable_thinking %} <think> </think>{% endif %}"
)


def write_thinker(folder: Path) -> Path:
    """A checkpoint whose layers add nothing: each word is followed by the one that its row of the head stands for."""
    config = CONFIG | {"vocab_size": len(WORDS), "eos_token_id": WORDS.index("<|im_end|>")}
    tensors = random_tensors(config)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight", "embed_tokens.weight", "lm_head.weight")):
            tensor.zero_()
        elif "norm" in name:
            tensor.fill_(1)
    embedding = tensors["model.embed_tokens.weight"]
    embedding[torch.arange(len(WORDS)), torch.arange(len(WORDS))] = 1
    for word, following in SAYS.items():
        tensors["lm_head.weight"][WORDS.index(following), WORDS.index(word)] = 1
    write_checkpoint(folder, tensors, config)
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in ("<think>", "</think>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}))
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": False}))
    return folder
