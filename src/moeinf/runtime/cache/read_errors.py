"""What a read of an expert that failed means to the user."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from moeinf._native import ReadFailure
from moeinf.errors import ExpertReadError
from moeinf.runtime.io.reader import remedy_of_read


class ReadErrors:
    """Names the expert, its file and the remedy."""

    def __init__(
        self, shards: Sequence[Path], num_experts: int, model: str = "MODEL", remedy: str | None = None, slices: int = 1
    ) -> None:
        """shards: the file of each layer; none where a layer has no file of its own. model: its name.

        slices: of an expert, each with a key of its own.
        """
        self._slices = slices
        self._shards = shards
        self._remedy = remedy or f"check it with `moeinf verify {model}`, then `moeinf pull` it again"
        self._num_experts = num_experts
        self._model = model

    def explain(self, failure: ReadFailure) -> ExpertReadError:
        layer, expert = divmod(int(failure.key) // self._slices, self._num_experts)
        fault = "damaged" if failure.errno == errno.EBADMSG else "unreadable"
        path = self._shards[layer] if self._shards else failure.path
        return ExpertReadError(
            f"{self._model}: expert {expert} of layer {layer} is {fault} in "
            f"{path}: {failure}; {remedy_of_read(failure, self._remedy)}"
        )
