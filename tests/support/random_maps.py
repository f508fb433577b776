"""Maps from states to routing that were drawn, and not trained."""

from __future__ import annotations

import numpy as np

from moeinf.runtime.policy.state_maps import StateMaps, TimeGain, map_shapes
from moeinf.types import MoeShape

BETTER = TimeGain((0.4, 3.0), (8.0, 20.0), (7.5, 18.0), "tuned", 9, 800, (1.5, 1.4))


def random_maps(
    shape: MoeShape, hidden: int, gain: TimeGain = BETTER, model_id: str = "abc", seed: int = 0
) -> StateMaps:
    rng = np.random.default_rng(seed)
    shapes = map_shapes(shape, hidden)
    weights = {name: (0.3 * rng.standard_normal(each)).astype(np.float32) for name, each in shapes.items()}
    return StateMaps(model_id, shape, weights, gain)
