"""Whether a routing can be believed: damaged weights, where they are no numbers, first show there."""

from __future__ import annotations

import numpy as np

from moeinf._native import all_finite
from moeinf.errors import NotFiniteError
from moeinf.types import Float32Array, IntArray

_SHOWN = 16  # experts of a layer that are named


class RoutingCheck:
    """Looks at each routing before it is used.

    It remembers that of the layer before: the experts that it chose are the first suspects.
    """

    def __init__(self, model: str) -> None:
        """model: its name, for the error."""
        self._model = model
        self._before: tuple[int, IntArray] | None = None

    def __call__(self, layer: int, ids: IntArray, weights: Float32Array) -> None:
        """ids, weights [tokens, top_k]; ids stay as they are. Raises NotFiniteError for a weight that is no number."""
        if all_finite(weights):
            self._before = layer, ids
            return
        before, self._before = self._before, None
        raise NotFiniteError(
            f"{self._model}: the router of expert layer {layer} gives no numbers{_in_use(before, layer)}; weights are "
            f"damaged or the machine computes wrongly: check them with `moeinf verify {self._model}`"
        )


def _in_use(before: tuple[int, IntArray] | None, failed_layer: int) -> str:
    if before is None or before[0] >= failed_layer:  # of another token: it gave this layer nothing
        return ""
    layer, ids = before
    experts = np.unique(ids)
    names = ", ".join(map(str, experts[:_SHOWN].tolist()))
    more = f" and {len(experts) - _SHOWN} more" if len(experts) > _SHOWN else ""
    return f" (in use before it: experts {names}{more} of layer {layer})"
