"""Tables of n-grams stay in the store: rows are read when tokens ask for them, and checked as they come."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.model import Model
from moeinf.errors import StoreError
from moeinf.models.family import family_of
from moeinf.models.layers.streams.ngrams import NgramConfig, NgramTable
from moeinf.pull.pull import pull
from moeinf.store.dense import dense_tensors
from moeinf.store.library import StoredModel
from moeinf.types import TensorSpec
from tests.support.checkpoints import random_tensors, write_checkpoint
from tests.support.configs.qwen4_exp import QWEN4

IDS = [5, 17, 3, 88, 41, 2, 60, 9]


@pytest.fixture(params=[None, "q8_0"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> StoredModel:
    text = QWEN4["text_config"] | {"ple_embed_dim": 128, "ngram_vocab_size_base": 1009, "ple_layer_ids": [1]}
    config = QWEN4 | {"text_config": text}
    tensors = {name: tensor * 0.1 for name, tensor in random_tensors(config).items()}
    source = write_checkpoint(tmp_path / "source", tensors, config)
    return pull(str(source), PullOptions(quant=request.param), home=tmp_path / "home")


def tables(stored: StoredModel) -> list[TensorSpec]:
    specs = dense_tensors(stored.dense_path, stored.manifest.formats.dense)
    return [spec for spec in specs if ".ngram_embedding." in spec.name]


def opened(stored: StoredModel) -> Model:
    return Model(stored, RuntimeConfig.of(device="cpu", threads=1, context=64))


def test_a_table_takes_no_memory_and_its_damage_is_found_where_it_is_read(stored: StoredModel) -> None:
    parts = tables(stored)
    assert len(parts) == 3 and len({part.dtype for part in parts}) == 1
    with closing(opened(stored)) as model:
        held = model.runner.plan.dense_bytes
        assert held <= stored.dense_path.stat().st_size - sum(part.num_bytes for part in parts)
        sound = model.runner.forward(IDS, lambda: None)
    data = np.memmap(stored.dense_path, np.uint8, "r+")
    read = rows_of(stored)
    for part in parts:  # all that no token asks for, nor shares a unit with what one does
        row_bytes = part.num_bytes // part.shape[0]
        together = 4096 // row_bytes
        own = {row // together for row in read if row < part.shape[0]}
        for unit in range(part.shape[0] // together):
            if unit not in own:
                data[part.offset_bytes + unit * together * row_bytes] ^= 1
        read = [row - part.shape[0] for row in read if row >= part.shape[0]]
    data.flush()
    with closing(opened(stored)) as model:
        assert np.array_equal(model.runner.forward(IDS, lambda: None), sound)
    for part in parts:
        data[part.offset_bytes : part.offset_bytes + part.num_bytes] ^= 1
    data.flush()
    with closing(opened(stored)) as model, pytest.raises(StoreError, match=r"rows from \d+ of tensor '.*ngram_embed"):
        model.runner.forward(IDS, lambda: None)


def rows_of(stored: StoredModel) -> list[int]:
    """Those that the tokens ask for, in the whole table."""
    text = QWEN4["text_config"] | {"ple_embed_dim": 128, "ngram_vocab_size_base": 1009, "ple_layer_ids": [1]}
    family = family_of(QWEN4 | {"text_config": text})
    config = family.spec.connections.ngrams  # type: ignore[union-attr]
    assert isinstance(config, NgramConfig)
    ends = [config.end_id] * (config.size - 1)
    return sorted({int(row) for row in NgramTable(config, 0, []).rows_of(np.array(ends + IDS)).reshape(-1)})
