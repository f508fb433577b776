"""The routing of Phi-3.5-MoE is that of the published function, for every margin."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from moeinf.models.cpu.math import NumpyMath
from moeinf.models.families.mixtral.phimoe import Sparsemixer
from moeinf.models.gpu.math import TorchMath
from moeinf.models.layers.attention_config import NormConfig


def routed(math: Any, scores: Any, jitter: float) -> tuple[Any, Any]:
    norm = NormConfig("norm", 1e-5, "layer")
    weights: Any = SimpleNamespace(
        math=math,
        linear=lambda name: lambda x: x,
        norm=lambda *_: lambda x: x,
        routing=lambda ids, weights: (ids, weights),
    )
    router: Any = Sparsemixer(weights, "gate", norm, scores.shape[-1], jitter)
    chosen: tuple[Any, Any] = router(scores)[1]
    return chosen


@pytest.mark.parametrize("jitter", [0.0, 0.01, 0.1, 0.7])
@pytest.mark.parametrize("shift", [-4.0, 0.0, 4.0], ids=["all negative", "mixed", "all positive"])
def test_ids_and_weights_are_those_of_the_published_function(jitter: float, shift: float) -> None:
    from transformers.models.phimoe import modeling_phimoe

    published: Any = modeling_phimoe.sparsemixer
    scores = torch.randn((500, 16), generator=torch.Generator().manual_seed(1)) + shift
    weights, ids = published(scores, jitter_eps=jitter, training=False)
    for math, given in ((NumpyMath(), scores.numpy()), (TorchMath(torch.device("cpu")), scores)):
        our_ids, our_weights = routed(math, given, jitter)
        assert np.array_equal(np.asarray(our_ids), ids.numpy())
        np.testing.assert_allclose(np.asarray(our_weights), weights.numpy(), atol=1e-6)
        assert np.asarray(our_weights).dtype == np.float32
