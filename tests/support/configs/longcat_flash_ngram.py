"""Tiny configs of LongCat-Flash-Lite: tables of n-grams beside the embedding."""

import json
from pathlib import Path
from typing import Any

import torch

from tests.oracles.longcat_ngram import NgramEmbedding
from tests.support.configs import longcat_flash
from tests.support.configs.longcat_flash import LONGCAT

LONGCAT_NGRAM: dict[str, Any] = LONGCAT | {
    "model_type": "longcat_flash_ngram",
    "eos_token_id": 41,  # which the prompts of the tests have: n-grams end there
    "emb_neighbor_num": 3,
    "emb_split_num": 2,
    "ngram_vocab_size_ratio": 3,
}
CONFIGS = {
    "longcat_flash_ngram": LONGCAT_NGRAM,
    "longcat_flash_ngram longer n-grams, one table for each": LONGCAT_NGRAM
    | {"emb_neighbor_num": 5, "emb_split_num": 1, "ngram_vocab_size_ratio": 2},
}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers' LongCat-Flash; what its embedding gives is replaced. Without a cache it is given whole texts."""
    named = ("emb_neighbor_num", "emb_split_num", "ngram_vocab_size_ratio")
    plain = {name: value for name, value in config.items() if name not in named}
    model = longcat_flash.REFERENCE(plain | {"model_type": "longcat_flash"})
    counted = model.parameters
    torch.manual_seed(5)
    added = NgramEmbedding(config, model.model.embed_tokens)
    for parameter in added.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.model.ngram_embeddings = added
    model.model.embed_tokens.register_forward_hook(lambda module, given, rows: added(given[0]))
    model.config.use_cache = model.generation_config.use_cache = False
    model.parameters = lambda: [*counted(), *added.parameters()]
    as_its_own = model.save_pretrained

    def saved(folder: Path) -> None:
        as_its_own(folder)
        written = json.loads((Path(folder) / "config.json").read_text())
        of_tables = {name: config[name] for name in named}
        (Path(folder) / "config.json").write_text(
            json.dumps(written | of_tables | {"model_type": config["model_type"]})
        )

    model.save_pretrained = saved
    return model.eval()
