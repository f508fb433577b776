"""Many tokens go through MLPs part by part: a model gives the same numbers, however many tokens a part has."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch

from moeinf.models.cpu.math import NumpyMath
from moeinf.models.layers import moe_block
from tests.support.frozen import CONFIGS, facts

DENSE_SHARED_AND_UNGATED = (
    "deepseek_v3",
    "granitemoeshared",
    "nemotron_h biased",
    "qwen2_moe dense layers, squared relu",
)


@torch.inference_mode()
@pytest.mark.parametrize("name", DENSE_SHARED_AND_UNGATED, ids=lambda name: name.replace(" ", "-"))
def test_tokens_give_the_same_in_parts_as_together(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    together = facts(CONFIGS[name])
    monkeypatch.setattr(moe_block, "_TOGETHER", 2)
    assert facts(CONFIGS[name]) == together


def test_no_tokens_give_no_rows() -> None:
    nothing = np.zeros((0, 8), np.float32)
    assert moe_block.in_parts(cast(Any, NumpyMath()), lambda hidden: hidden[:, :4], nothing).shape == (0, 4)
