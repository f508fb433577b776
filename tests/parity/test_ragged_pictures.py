"""DeepSeek-V4.1's pictures whose sides are no whole tokens: the tower, what stands in a prompt, and logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.pairs.seeing import SeeingPair
from tests.support.tiny_models import all_configs


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> SeeingPair:
    folder: Path = tmp_path_factory.mktemp("checkpoint")
    return SeeingPair(all_configs("SEEING")["deepseek_v41"], folder, tokens=70)


@torch.inference_mode()
@pytest.mark.parametrize(("height", "width", "tokens"), [(30, 40, 17), (17, 25, 10), (9, 90, 11), (300, 290, 58)])
def test_what_lacks_of_the_last_tokens_is_zeros(pair: SeeingPair, height: int, width: int, tokens: int) -> None:
    image = np.random.default_rng(3).integers(0, 256, (height, width, 3)).astype(np.uint8)
    [view] = pair.patches(image)
    assert any(side % 3 for side in view.grid)
    prompt: list[int | np.ndarray] = [5, 17, image, 3, 88, 41, image, 2]
    given = pair.their_inputs(prompt)
    theirs, ours = pair.theirs.rows(given["pixel_values"][:1], given["grids"][:1]), pair.rows(image)
    assert theirs.shape == ours.shape and len(ours) == tokens
    assert (torch.from_numpy(ours) - theirs).abs().max() < 2e-5 * theirs.abs().max()
    logits = pair.theirs(**given).logits[0]
    assert (pair.logits(prompt) - logits).abs().max() < 1e-4 * logits.abs().max()
