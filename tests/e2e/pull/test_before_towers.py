"""Stores of families that saw nothing when they were pulled: their text goes on as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.engine.stored.facts import StoredFacts
from moeinf.engine.stored.outline import outline_of
from moeinf.models.family import family_of, text_alone
from moeinf.models.registry import MODULES
from moeinf.pull.pull import pull
from moeinf.store.library import StoredModel
from moeinf.types import Float32Array
from tests.support.checkpoints import random_tensors, write_checkpoint
from tests.support.tiny_models import all_configs

IDS = [5, 17, 3, 88, 41, 2, 60]
SEEING = all_configs("SEEING")
CHANGED = ("deepseek_v41", "ernie4_5_vl_moe")  # whose text has tensors for pictures


def logits(stored: StoredModel) -> Float32Array:
    with Model(stored, RuntimeConfig.of(context=32, threads=1, device="cpu", expert_cache="50%")) as model:
        network: Any = model.runner.network
        found: Float32Array = network.forward(IDS, model.runner.cache, last_only=False).copy()
    return found


@pytest.mark.parametrize("name", CHANGED)
def test_text_is_answered_as_by_the_model_that_sees(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = SEEING[name]
    folder = write_checkpoint(tmp_path / "checkpoint", random_tensors(config), config, num_shards=0)
    wanted = logits(pull(str(folder), home=tmp_path / "now"))
    with monkeypatch.context() as before:
        before.setattr(f"moeinf.models.families.{MODULES[config['model_type']]}.seeing", lambda parse: (None, ""))
        stored = pull(str(folder), home=tmp_path / "before")
    assert family_of(config).vision is not None and not stored.manifest.vision_bytes
    assert outline_of(stored).held.memory_bytes > 0
    found = logits(stored)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
    assert "was stored without its vision tower: `moeinf pull` it again" in StoredFacts(stored).why_no_vision


@pytest.mark.parametrize("name", SEEING)
def test_of_all_others_the_text_is_stored_alike(name: str) -> None:
    """One that is not has to be among those that are opened as before."""
    config = SEEING[name]
    inner = config.get("thinker_config")
    blind = config | {"thinker_config": text_alone(inner)} if isinstance(inner, dict) else text_alone(config)
    family, alone = family_of(config), family_of(blind)
    assert family.vision is not None and alone.vision is None
    alike = (family.tensors.dense, family.tensors.moe) == (alone.tensors.dense, alone.tensors.moe)
    assert alike is not name.startswith(CHANGED)
