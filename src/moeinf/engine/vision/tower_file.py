"""Reads the vision tower of a stored model, part by part, so that no more than one is ever in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final, cast

from moeinf._native import Kernels
from moeinf.config import RuntimeConfig
from moeinf.engine.dense_weights import FileTensor
from moeinf.errors import StoreError
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.layers.protocol import Layers
from moeinf.models.layers.vision.vision import Part, Tower
from moeinf.models.layers.weights import in_memory
from moeinf.runtime.io.file_pieces import FilePieces
from moeinf.runtime.io.protocol import OnWait
from moeinf.store.dense import dense_tensors
from moeinf.store.dense_sums import DenseSums
from moeinf.store.format import VISION_FILE
from moeinf.store.library import StoredModel

_BUFFER_BYTES: Final = 8 << 20


class TowerFile:
    """The file vision.safetensors of a model."""

    def __init__(
        self, stored: StoredModel, tower: Tower, sums: DenseSums, config: RuntimeConfig, on_wait: OnWait | None
    ) -> None:
        """Reads nothing yet."""
        self._path, self._num_bytes = stored.path / VISION_FILE, stored.manifest.vision_bytes
        self._tower, self._sums, self._config, self._on_wait = tower, sums, config, on_wait

    @contextmanager
    def opened(self, kernels: Kernels) -> Iterator[Part]:
        """Yields what gives parts of the tower. Raises StoreError for damage, also while a part is read."""
        self._sums.check_header()
        specs = dense_tensors(self._path)
        if {spec.name: spec.shape for spec in specs} != self._tower.shapes:
            raise StoreError(f"{self._path} has other tensors than the tower of this family; pull the model again")
        with closing(
            FilePieces(self._path, self._num_bytes, self._config, self._on_wait, buffer_bytes=_BUFFER_BYTES)
        ) as file:

            def part(prefix: str) -> Layers:
                tensors = {
                    spec.name: in_memory(FileTensor(self._path, file, spec, self._sums))
                    for spec in specs
                    if spec.name.startswith(prefix)
                }
                return cast(Layers, NativeLayers(kernels, self._tower.prepared(tensors), "f32"))

            yield part
