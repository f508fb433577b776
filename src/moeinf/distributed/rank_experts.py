"""moeinf.models.layers.protocol.Experts of rank 0: the streamed experts of this machine, and those of the workers."""

from __future__ import annotations

from moeinf.distributed.kernels import JoiningKernel
from moeinf.runtime.experts import StreamedExperts
from moeinf.types import Routing


class SharedExperts:
    """What StreamedExperts is, over a JoiningKernel, but that guesses go to the workers as well."""

    def __init__(self, streamed: StreamedExperts, joining: JoiningKernel, *, guesses: bool) -> None:
        """guesses: whether workers are told guesses at the routing of the next layer, to read ahead by."""
        self._streamed, self._joining, self._guesses = streamed, joining, guesses
        self.run = streamed.run  # the kernel splits the layer
        self.norm_outputs = streamed.norm_outputs  # here, where outputs are summed

    @property
    def wants_expectations(self) -> bool:
        return self._guesses or self._streamed.wants_expectations

    def expect(self, layer: int, guess: Routing) -> None:
        if self._streamed.wants_expectations:
            self._streamed.expect(layer, guess)
        if self._guesses:
            self._joining.expect(layer, guess)
