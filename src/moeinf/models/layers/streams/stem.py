"""What is between the tokens of a pass and the first layer, and between the last layer and the head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.kv_cache import Cache, LayerState


class Stem(Protocol):
    @property
    def picture_id(self) -> int:
        """What stands for a picture's tokens where ids are looked up; their embedding is replaced."""
        ...

    def new_states(self, capacity: int) -> Sequence[LayerState]:
        """What is kept of a sequence beside the states of the layers, in whose order it follows them."""
        ...

    def inputs(self, ids: Sequence[int], cache: Cache) -> Array:
        """What the host looks up for the tokens that follow what the cache holds: [tokens, width]."""
        ...

    def begin(self, x: Array) -> Hidden:
        """These inputs -> what the first layer is given. Like the layers, it may be captured on a GPU."""
        ...

    def end(self, x: Hidden, pick: Callable[[Hidden], Hidden]) -> Hidden:
        """What the last layer leaves -> [rows, hidden_size], of those rows of the pass that `pick` leaves of any."""
        ...

    def seen(self, ids: Sequence[int], cache: Cache) -> None:
        """Called on the host when the layers have stored the tokens."""
        ...


class PlainStem:
    """An embedding, and nothing else."""

    picture_id = 0

    def __init__(self, embedding: Callable[[Sequence[int]], Array]) -> None:
        self._embedding = embedding

    def new_states(self, capacity: int) -> Sequence[LayerState]:
        return ()

    def inputs(self, ids: Sequence[int], cache: Cache) -> Array:
        return self._embedding(ids)

    def begin(self, x: Array) -> Hidden:
        return x

    def end(self, x: Hidden, pick: Callable[[Hidden], Hidden]) -> Hidden:
        return pick(x)

    def seen(self, ids: Sequence[int], cache: Cache) -> None:
        pass


class NormedStem(PlainStem):
    """An embedding and a norm, beside layers that keep further states."""

    def __init__(
        self,
        embedding: Callable[[Sequence[int]], Array],
        norm: Callable[[Array], Array],
        states: Sequence[Callable[[int], LayerState]],
    ) -> None:
        """states: what makes them, of a capacity."""
        super().__init__(embedding)
        self._norm, self._states = norm, states

    def new_states(self, capacity: int) -> Sequence[LayerState]:
        return [make(capacity) for make in self._states]

    def inputs(self, ids: Sequence[int], cache: Cache) -> Array:
        return self._norm(super().inputs(ids, cache))  # rows of pictures, which take the place of some, have none
