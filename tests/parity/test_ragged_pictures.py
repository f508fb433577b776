"""DeepSeek-V4.1's pictures whose sides are no whole tokens: the tower, what stands in a prompt, and logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from moeinf.engine.weights.dense_file import check_against_plan
from moeinf.errors import StoreError
from moeinf.models.cpu.layers import NativeLayers
from moeinf.types import Profiler
from tests.support.pairs.experts import resident_experts, stored
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


@torch.inference_mode()
def test_a_store_of_an_older_version_answers_to_text_as_before(pair: SeeingPair) -> None:
    """It lacks what experts are chosen by for pictures."""
    plan = pair.family.tensors
    text = {name: stored(tensor) for name, tensor in pair.text.items() if name in plan.dense}
    older = {name: each for name, each in text.items() if not name.endswith("bias_vl")}
    assert len(older) < len(text)
    check_against_plan(Path("it"), {name: each.shape for name, each in older.items()}, plan)
    with pytest.raises(StoreError, match=r"it lacks tensor layers\.0\.ffn\.gate\.bias; pull the model again"):
        check_against_plan(
            Path("it"), {name: each.shape for name, each in older.items() if name != "layers.0.ffn.gate.bias"}, plan
        )
    experts = resident_experts(plan, pair.text, pair.kernels)
    ours = pair.family.build(NativeLayers(pair.kernels, older, "f32"), experts, Profiler())
    prompt = [5, 17, 3, 88, 41, 2, 60]
    assert torch.equal(pair.logits(prompt, model=ours), pair.logits(prompt))
