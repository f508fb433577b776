"""What a stored model computes of one text."""

from __future__ import annotations

from typing import Any, Final

from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.store.library import StoredModel
from moeinf.types import Float32Array

_IDS: Final = (5, 17, 3, 41, 41, 2, 60, 9, 33, 14)


def logits(stored: StoredModel, **options: Any) -> Float32Array:
    """[tokens, vocab], on the CPU."""
    with Model(stored, RuntimeConfig.of(context=32, threads=1, device="cpu", **options)) as model:
        network: Any = model.runner.network
        found: Float32Array = network.forward(list(_IDS), model.runner.cache, last_only=False).copy()
        model.tier.check_integrity()
    return found
