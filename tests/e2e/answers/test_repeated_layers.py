"""A model whose layers run several times for a token: their experts are one in store and cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.model import Model
from moeinf.errors import UsageError
from moeinf.pull.pull import pull
from moeinf.store.library import StoredModel
from moeinf.types import Float32Array
from tests.support.checkpoints import random_tensors, write_checkpoint
from tests.support.tiny_models import all_configs

CONFIG = all_configs()["inkling2_loop"]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    folder = tmp_path_factory.mktemp("looped")
    checkpoint = write_checkpoint(folder / "checkpoint", random_tensors(CONFIG), CONFIG, num_shards=0)
    return pull(str(checkpoint), PullOptions(name="looped"), home=folder / "home")


def logits(stored: StoredModel, cache: str, **options: str) -> Float32Array:
    """Of a prompt, and of single tokens behind it."""
    ids = np.random.default_rng(5).integers(3, 90, 20).tolist()
    with Model(stored, RuntimeConfig.of(threads=1, expert_cache=cache, **options)) as model:
        runner = model.runner
        rows = [runner.network.forward(ids[:9], runner.cache)]
        rows += [runner.network.forward([token], runner.cache) for token in ids[9:]]
        model.tier.check_integrity()
    return np.concatenate(rows)


def test_logits_are_those_of_a_whole_cache_whatever_leaves_and_comes_first(stored: StoredModel) -> None:
    whole, layout = logits(stored, "100%"), stored.manifest.layout
    assert stored.manifest.moe.num_layers == CONFIG["text_config"]["num_hidden_layers"], "one block for all passes"
    for options in ({"policy": "lru"}, {"predictor": "cross-layer"}, {"predictor": "look-ahead"}):
        smallest = f"{stored.manifest.moe.top_k * layout.stride_bytes}B"
        assert np.array_equal(logits(stored, smallest, **options), whole), options


def test_routing_is_not_recorded(stored: StoredModel, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"run several times for a token, .*; leave out --trace"):
        Model(stored, RuntimeConfig.of(threads=1, trace=str(tmp_path / "trace")))
