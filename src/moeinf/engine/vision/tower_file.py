"""Reads the vision tower of a stored model, part by part, so that no more than one is ever in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Final, Protocol, cast

from moeinf._native import Kernels
from moeinf.config import RuntimeConfig
from moeinf.engine.weights.dense_file import FileTensor
from moeinf.engine.weights.placed_reads import PlacedReads, recipes_of
from moeinf.errors import StoreError
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.layers.protocol import Layers
from moeinf.models.layers.vision.vision import Part, Tower
from moeinf.models.layers.weights import StoredTensor, as_bfloat16, in_memory
from moeinf.runtime.io.file_pieces import FilePieces
from moeinf.runtime.io.reader_protocol import OnWait
from moeinf.store.dense import dense_tensors
from moeinf.store.dense_sums import DenseSums
from moeinf.store.format import VISION_FILE
from moeinf.store.library import StoredModel
from moeinf.store.manifest import MANIFEST_FILE
from moeinf.types import Format, KVFormat, SumRun

_BUFFER_BYTES: Final = 8 << 20


class TowerFile(Protocol):
    """The weights of a tower, on disk."""

    def opened(self, kernels: Kernels) -> AbstractContextManager[Part]:
        """Yields what gives parts of the tower. Raises StoreError for damage, also while a part is read."""
        ...


def open_tower(
    stored: StoredModel, tower: Tower, sums: Sequence[SumRun], config: RuntimeConfig, on_wait: OnWait | None
) -> TowerFile:
    """The tower, wherever it lies. Reads nothing yet."""
    if stored.manifest.in_place is not None:
        return PlacedTower(stored, tower, sums, config, on_wait)
    return StoredTower(stored, tower, sums, config, on_wait)


class StoredTower:
    """The file vision.safetensors of a model: a TowerFile."""

    def __init__(
        self, stored: StoredModel, tower: Tower, sums: Sequence[SumRun], config: RuntimeConfig, on_wait: OnWait | None
    ) -> None:
        self._path, self._num_bytes = stored.path / VISION_FILE, stored.manifest.vision_bytes
        self._tower, self._config, self._on_wait = tower, config, on_wait
        self._sums = DenseSums(stored, sums, always=config.reading.verify_reads, path=self._path)

    @contextmanager
    def opened(self, kernels: Kernels) -> Iterator[Part]:
        self._sums.check_header()
        specs = dense_tensors(self._path)
        kept = kept_of((spec.dtype, spec.shape) for spec in specs)
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
                return layers_of(kernels, self._tower.prepared(tensors), kept)

            yield part


class PlacedTower:
    """The tower of a model in place, in a file of another program: a TowerFile."""

    def __init__(
        self, stored: StoredModel, tower: Tower, sums: Sequence[SumRun], config: RuntimeConfig, on_wait: OnWait | None
    ) -> None:
        self._stored, self._tower, self._config, self._on_wait = stored, tower, config, on_wait
        self._reads = PlacedReads(stored, sums, always=config.reading.verify_reads)

    @contextmanager
    def opened(self, kernels: Kernels) -> Iterator[Part]:
        where = self._stored.path / MANIFEST_FILE
        recipes = recipes_of(self._reads.in_place.vision, where)
        if {name: recipe.kind.shape for name, recipe in recipes.items()} != self._tower.shapes:
            raise StoreError(f"{where} has other tensors than the tower of this family; pull the model again")

        kept = kept_of((recipe.kind.format, recipe.kind.shape) for recipe in recipes.values())

        def part(prefix: str) -> Layers:
            wanted = [recipe for name, recipe in recipes.items() if name.startswith(prefix)]
            tensors = self._reads.read(wanted, self._config, self._on_wait)
            return layers_of(kernels, self._tower.prepared(tensors), kept)

        yield part


def kept_of(kinds: Iterable[tuple[Format, Sequence[int]]]) -> KVFormat:
    """The format of keys and values of a tower whose tensors have these formats and shapes: rounded where matrices are.

    All of its layers share a cache, so they have one format.
    """
    return "f32" if any(format == "f32" and len(shape) > 1 for format, shape in kinds) else "bf16"


def layers_of(kernels: Kernels, tensors: Mapping[str, StoredTensor], kept: KVFormat) -> Layers:
    """Over tensors as the tower wants them. Files of other programs may have what was published as bfloat16 in float16,
    whose products are slow: it is made that again."""
    return cast(Layers, NativeLayers(kernels, {name: as_bfloat16(each) for name, each in tensors.items()}, kept))
