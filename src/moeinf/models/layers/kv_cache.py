"""What a model keeps of the tokens it has seen: a state for each layer, and their number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class LayerState(Protocol):
    """Keys and values, compressed ones, or a recurrent state."""

    @property
    def rewinds(self) -> bool:
        """Whether the state after fewer tokens can be had again; a recurrent one only begins anew."""
        ...

    def truncate(self, length: int) -> None:
        """Forgets all but the first `length` tokens; of a state that does not rewind, length is 0."""
        ...

    # One that does not rewind keeps what a pass makes of it apart until `commit()`: a pass may be given up half-way.


class Cache:
    """The states of one sequence, with room for `capacity` tokens."""

    beams = 1  # sequences that a pass goes on with side by side

    def __init__(self, states: Sequence[LayerState], capacity: int) -> None:
        self.states: list[Any] = list(states)  # by decoder layer; whoever made the layer knows what its state is
        self.capacity = capacity
        self.length = 0  # tokens that every layer has stored

    def advance(self, num_tokens: int) -> None:
        """Called when the last layer has stored the tokens behind `length`."""
        self.length += num_tokens
        assert self.length <= self.capacity, "the caller checks the context before a forward pass"

    def commit(self) -> None:
        """Called at the end of a pass, as its last work on the device."""
        for state in self.states:
            if not state.rewinds:
                state.commit()

    def truncate(self, length: int) -> int:
        """Forgets all but the first `length` tokens, or all where a state cannot go back; how many are left."""
        assert 0 <= length <= self.length
        if length < self.length and not all(state.rewinds for state in self.states):
            length = 0
        if length < self.length:
            for state in self.states:
                state.truncate(length)
        self.length = length
        return length
