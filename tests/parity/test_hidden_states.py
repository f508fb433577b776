"""What sequences are told of their tokens is what the reference gives its head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.pairs.decoders import CONFIGS, PROMPT, Pair


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3", "qwen3_next", "granitemoehybrid"])
@torch.inference_mode()
def test_each_token_is_told_as_the_head_is_given_it(name: str, tmp_path: Path) -> None:
    config = next(config for config in CONFIGS.values() if config["model_type"] == name)
    pair, told = Pair(config, tmp_path), list[Any]()
    theirs = pair.theirs.model(torch.tensor([PROMPT])).last_hidden_state[0].numpy()
    cache = pair.ours.new_cache(64)
    cache.on_hidden = lambda start, hidden: told.append((start, hidden.copy()))
    for start, end in ((0, 5), (5, 6), (6, len(PROMPT))):
        pair.ours.forward(PROMPT[start:end], cache, of_tokens=len(PROMPT))
    assert [start for start, _ in told] == [0, 5, 6]
    ours = np.concatenate([hidden for _, hidden in told])
    assert theirs.std() > 0.1 and np.abs(ours - theirs).max() < 1e-4
