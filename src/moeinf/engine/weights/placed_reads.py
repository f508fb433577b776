"""Reads tensors that lie in the files of another program, and undoes what was done to them on the way there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moeinf._native import Arena, PageTaker, ReadFailure, crc32c
from moeinf.config import RuntimeConfig
from moeinf.engine.weights.dense_file import looked_up
from moeinf.errors import StoreError
from moeinf.gguf.undo import Kind, Stored, Undo, outcome, parse_undo, undone
from moeinf.hardware import usable_cores
from moeinf.models.layers.weights import StoredTensor
from moeinf.runtime.io.pages import LEAST_BYTES
from moeinf.runtime.io.reader import open_reader, unreadable
from moeinf.runtime.io.reader_protocol import OnWait
from moeinf.runtime.io.row_file import RowFile
from moeinf.store.dense import check_part
from moeinf.store.dense_sums import DenseSums
from moeinf.store.files import errors_named
from moeinf.store.library import StoredModel
from moeinf.store.placed.places import DensePlace, InPlace, TensorPlace, region_bytes
from moeinf.threads import mapped
from moeinf.types import BLOCK_ALIGN_BYTES, ByteArray, SumRun, TensorSpec


@dataclass(frozen=True, slots=True)
class Recipe:
    """A tensor, and how it is made."""

    place: DensePlace
    undo: Undo
    kind: Kind  # that it ends in

    @property
    def as_it_lies(self) -> bool:
        return not self.undo

    @property
    def source_bytes(self) -> int:
        return sum(region_of(source) for source in self.place.sources)


def recipes_of(places: Iterable[DensePlace], where: Path) -> dict[str, Recipe]:
    """By the names that the family knows. Raises StoreError for steps that do not make what a place promises."""
    return {place.name: _recipe(place, f"{where}: tensor {place.name!r}") for place in places}


def _recipe(place: DensePlace, where: str) -> Recipe:
    """Raises StoreError for steps that do not make what the place promises."""
    undo = parse_undo(list(place.undo), where)
    kind = outcome([Kind(source.format, source.shape) for source in place.sources], undo)
    if kind is None or kind.shape != place.shape:
        raise StoreError(f"{where} does not become {list(place.shape)}; pull the model again")
    return Recipe(place, undo, kind)


def region_of(source: TensorPlace) -> int:
    return region_bytes(source.offset_bytes, BLOCK_ALIGN_BYTES, source.num_bytes, 1)


def _spec(source: TensorPlace) -> TensorSpec:
    return TensorSpec(source.tensor, source.format, source.shape, source.offset_bytes, source.num_bytes)


class PlacedReads:
    """Reads from the files of a model in place, and compares what it reads with the checksums, where there are any."""

    def __init__(self, stored: StoredModel, runs: Sequence[SumRun], *, always: bool = False) -> None:
        """always: rows are compared with their sums whenever they are looked up."""
        in_place = stored.manifest.in_place
        assert in_place is not None
        self.in_place: InPlace = in_place
        self._paths, self._remedy = in_place.paths(stored.path), stored.remedy
        self._sums = [DenseSums(stored, runs, always=always, path=path) for path in self._paths]

    def read(
        self,
        recipes: Sequence[Recipe],
        config: RuntimeConfig,
        on_wait: OnWait | None,
        count: Callable[[int], None] = lambda num_bytes: None,
    ) -> dict[str, StoredTensor]:
        """Tensors by name: reads their sources and undoes what is to be undone. count: told bytes as they come.

        Raises StoreError for damage.
        """
        sources = list(dict.fromkeys(source for recipe in recipes for source in recipe.place.sources))
        found = self._bytes_of(sources, config, count, on_wait)
        list(
            mapped(lambda source: self._check(source, found[source]), sources, config.compute.threads or usable_cores())
        )
        return {recipe.place.name: _made(recipe, found) for recipe in recipes}

    def made_lookup(self, recipe: Recipe) -> StoredTensor:
        """A table that is not as it lies, in memory. Raises StoreError for damage."""
        found = {}
        for source in recipe.place.sources:
            found[source] = self._row_file(source).read(source.offset_bytes, source.num_bytes)
            self._check(source, found[source])
        return _made(recipe, found)

    def _bytes_of(
        self,
        sources: Sequence[TensorPlace],
        config: RuntimeConfig,
        count: Callable[[int], None],
        on_wait: OnWait | None,
    ) -> dict[TensorPlace, ByteArray]:
        sizes = np.array([region_of(source) for source in sources])
        starts = np.cumsum(sizes) - sizes
        arena = Arena(int(sizes.sum()))
        memory = arena.array()
        lengths = [file.num_bytes for file in self.in_place.files]
        reader = open_reader(self._paths, lengths, arena, config, on_wait=on_wait)
        keys = np.arange(len(sources))
        columns = (
            [source.file for source in sources],
            [source.offset_bytes for source in sources],
            starts,
            [source.num_bytes for source in sources],
        )
        pages = PageTaker(memory)
        try:
            if len(memory) > LEAST_BYTES:
                pages.take(0, len(memory))
            files, offsets, destinations, num_bytes = (np.array(column, np.int64)[:, None] for column in columns)
            reader.submit_pieces(keys, files, offsets, destinations, num_bytes, np.full(len(keys), np.inf))
            while len(keys):
                landed = reader.wait_any(keys)
                keys = np.setdiff1d(keys, landed)
                count(int(sizes[landed].sum()))
        except ReadFailure as failure:
            raise unreadable(failure) from failure
        finally:
            pages.drop(0)
            reader.close()
        found = {}
        for start, source in zip(starts.tolist(), sources, strict=True):
            begin = start + source.offset_bytes % BLOCK_ALIGN_BYTES
            found[source] = memory[begin : begin + source.num_bytes]
        return found

    def _row_file(self, source: TensorPlace) -> RowFile:
        with errors_named(self._paths[source.file]):
            return RowFile(self._paths[source.file], self._remedy)

    def _check(self, source: TensorPlace, data: ByteArray) -> None:
        """Raises StoreError for a tensor that is not what it was, or has a scale that is no number."""
        sums, spec = self._sums[source.file], _spec(source)
        if sums.known:
            sums.check(spec, crc32c(data))
        check_part(self._paths[source.file], spec, data.data)

    def looked_up(self, recipe: Recipe) -> StoredTensor:
        """A table that stays in its file, as it lies; each row is checked when it is first used."""
        (source,) = recipe.place.sources
        return looked_up(_spec(source), self._row_file(source), self._sums[source.file])


def _made(recipe: Recipe, found: Mapping[TensorPlace, ByteArray]) -> StoredTensor:
    given = [Stored(Kind(each.format, each.shape), found[each]) for each in recipe.place.sources]
    made = undone(given, recipe.undo, recipe.place.name)
    # A copy of what was made, so that what it was made of can go.
    data = made.data if recipe.as_it_lies else np.array(made.data)
    return StoredTensor(data, made.kind.format, made.kind.shape)
