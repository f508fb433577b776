"""Reads dense weights that lie in the files of another program, and undoes what was done to them on the way there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from moeinf._native import Arena, PageTaker, ReadFailure, crc32c
from moeinf.config import RuntimeConfig
from moeinf.engine.dense_weights import DenseFile, Kinds, check_against_plan
from moeinf.errors import StoreError
from moeinf.gguf.undo import Kind, Stored, Undo, outcome, parse_undo, undone
from moeinf.hardware import usable_cores
from moeinf.models.layers.weights import StoredTensor, TensorBytes
from moeinf.runtime.io.mapped import MappedFile
from moeinf.runtime.io.pages import LEAST_BYTES
from moeinf.runtime.io.protocol import OnWait
from moeinf.runtime.io.reader import open_reader, unreadable
from moeinf.store.dense import check_part
from moeinf.store.dense_sums import DenseSums
from moeinf.store.files import errors_named
from moeinf.store.library import StoredModel
from moeinf.store.placed.places import DensePlace, InPlace, TensorPlace, region_bytes
from moeinf.types import BLOCK_ALIGN_BYTES, ByteArray, Format, SumRun, TensorPlan, TensorSpec

_BATCH_BYTES: Final = 256 << 20  # of tensors that are undone, in memory at once


@dataclass(frozen=True, slots=True)
class _Recipe:
    """A dense tensor, and how it is made."""

    place: DensePlace
    undo: Undo
    kind: Kind  # that it ends in

    @property
    def as_it_lies(self) -> bool:
        return not self.undo

    @property
    def source_bytes(self) -> int:
        return sum(_region(source) for source in self.place.sources)


class PlacedSizes:
    """What the dense tensors in place take in memory, as the manifest tells.

    Raises StoreError where they are not what the plan wants.
    """

    def __init__(self, in_place: InPlace, plan: TensorPlan, where: Path) -> None:
        self.recipes = {place.name: _recipe(place, f"{where}: dense {place.name!r}") for place in in_place.dense}
        shapes = {name: recipe.kind.shape for name, recipe in self.recipes.items()}
        in_memory = check_against_plan(where, shapes, plan)
        self.lookups = [name for name in self.recipes if name in plan.lookups and self.recipes[name].as_it_lies]
        self.made_lookups = [name for name in self.recipes if name in plan.lookups and name not in self.lookups]
        self.mapped = [name for name in self.lookups if name not in in_memory]

    @property
    def memory_bytes(self) -> int:
        """The memory that the tensors take."""
        return sum(
            _region(recipe.place.sources[0]) if recipe.as_it_lies else recipe.kind.num_bytes
            for name, recipe in self.recipes.items()
            if name not in self.mapped
        )

    @property
    def kinds(self) -> Kinds:
        """Format and shape of each tensor that is held in memory, by its name."""
        held = {name: recipe.kind for name, recipe in self.recipes.items() if name not in self.mapped}
        return {name: (kind.format, kind.shape) for name, kind in held.items()}


class PlacedDense:
    """The dense weights of a model in place: as DenseFile. Raises StoreError where they are not what the plan wants."""

    def __init__(self, stored: StoredModel, plan: TensorPlan, runs: Sequence[SumRun], *, always: bool = False) -> None:
        in_place = stored.manifest.in_place
        assert in_place is not None
        self._in_place: InPlace = in_place
        self._paths = in_place.paths(stored.path)
        self._sums = [DenseSums(stored, runs, always=always, path=path) for path in self._paths]
        self._sizes = PlacedSizes(in_place, plan, stored.path / "manifest.json")
        self._recipes, self._lookups, self._mapped = self._sizes.recipes, self._sizes.lookups, self._sizes.mapped

    @property
    def memory_bytes(self) -> int:
        """The memory that `read` takes."""
        return self._sizes.memory_bytes

    @property
    def kinds(self) -> Kinds:
        """Format and shape of each tensor that is held in memory, by its name."""
        return self._sizes.kinds

    def read(
        self, config: RuntimeConfig, progress: Callable[[int, int], None], on_wait: OnWait | None = None
    ) -> dict[str, StoredTensor]:
        """Returns every tensor by name. progress(bytes done, memory_bytes). Raises StoreError."""
        wanted = [name for name in self._recipes if name not in self._mapped]
        done = 0

        def count(num_bytes: int) -> None:
            nonlocal done
            done += num_bytes
            progress(min(done, self.memory_bytes), self.memory_bytes)

        count(0)
        tensors: dict[str, StoredTensor] = {}
        for batch in self._batches(wanted):
            tensors |= self._read(batch, config, count, on_wait)
        return tensors | self._looked_up(self._mapped)

    @contextmanager
    def streamed(
        self, config: RuntimeConfig, progress: Callable[[int, int], None], on_wait: OnWait | None = None
    ) -> Iterator[Mapping[str, TensorBytes]]:
        """Yields what `read` returns, for a device: a tensor is read when its pieces are asked for."""
        done = 0

        def load(name: str) -> ByteArray:
            nonlocal done
            tensor = self._read([name], config, lambda num_bytes: None, on_wait)[name]
            done += tensor.num_bytes
            progress(min(done, self.memory_bytes), self.memory_bytes)
            return tensor.data

        progress(0, self.memory_bytes)
        yield {
            name: _Unread(recipe.kind, name, load) for name, recipe in self._recipes.items() if name not in self._mapped
        }

    def lookups(self) -> dict[str, StoredTensor]:
        """Returns the tensors of which rows are looked up, in the mapped files."""
        made = {}
        for name in self._sizes.made_lookups:
            sources = self._recipes[name].place.sources
            given = {each: self._mapped_file(each).part(each.offset_bytes, each.num_bytes) for each in sources}
            for source, data in given.items():
                self._check(source, data)
            made[name] = self._made(name, given)
        return made | self._looked_up(self._lookups)

    def _batches(self, names: Sequence[str]) -> Iterator[list[str]]:
        """What stays where it is read to comes at once; of what is undone, some at a time."""
        plain = [name for name in names if self._recipes[name].as_it_lies]
        if plain:
            yield plain
        batch: list[str] = []
        size = 0
        for name in (name for name in names if not self._recipes[name].as_it_lies):
            if batch and size + self._recipes[name].source_bytes > _BATCH_BYTES:
                yield batch
                batch, size = [], 0
            batch.append(name)
            size += self._recipes[name].source_bytes
        if batch:
            yield batch

    def _read(
        self, names: Sequence[str], config: RuntimeConfig, count: Callable[[int], None], on_wait: OnWait | None
    ) -> dict[str, StoredTensor]:
        """Reads the sources of these tensors, compares them with their checksums, and undoes what is to be undone."""
        sources = list(dict.fromkeys(source for name in names for source in self._recipes[name].place.sources))
        found = self._bytes_of(sources, config, count, on_wait)
        with ThreadPoolExecutor(config.threads or usable_cores()) as pool:
            list(pool.map(lambda source: self._check(source, found[source]), sources))
        return {name: self._made(name, found) for name in names}

    def _made(self, name: str, found: Mapping[TensorPlace, ByteArray]) -> StoredTensor:
        recipe = self._recipes[name]
        given = [Stored(Kind(each.format, each.shape), found[each]) for each in recipe.place.sources]
        made = undone(given, recipe.undo, name)
        # A copy of what was made, so that what it was made of can go.
        data = made.data if recipe.as_it_lies else np.array(made.data)
        return StoredTensor(data, made.kind.format, made.kind.shape)

    def _mapped_file(self, source: TensorPlace) -> MappedFile:
        with errors_named(self._paths[source.file]):
            return MappedFile(self._paths[source.file])

    def _bytes_of(
        self,
        sources: Sequence[TensorPlace],
        config: RuntimeConfig,
        count: Callable[[int], None],
        on_wait: OnWait | None,
    ) -> dict[TensorPlace, ByteArray]:
        sizes = np.array([_region(source) for source in sources])
        starts = np.cumsum(sizes) - sizes
        arena = Arena(int(sizes.sum()))
        memory = arena.array()
        lengths = [file.num_bytes for file in self._in_place.files]
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

    def _check(self, source: TensorPlace, data: ByteArray) -> None:
        """Raises StoreError for a tensor that is not what it was, or has a scale that is no number."""
        sums, spec = self._sums[source.file], _spec(source)
        if sums.known:
            sums.check(spec, crc32c(data))
        check_part(self._paths[source.file], spec, data.data)

    def _looked_up(self, names: Sequence[str]) -> dict[str, StoredTensor]:
        """Maps tensors; each row is checked when it is first used."""
        found = {}
        for name in names:
            (source,) = self._recipes[name].place.sources
            mapped = self._mapped_file(source)
            data = mapped.part(source.offset_bytes, source.num_bytes)
            check = self._sums[source.file].row_check(_spec(source), data)
            check = mapped.row_check(source.offset_bytes, source.num_bytes // source.shape[0], check)
            found[name] = StoredTensor(data, source.format, source.shape, check)
        return found


def open_dense(
    stored: StoredModel, plan: TensorPlan, sums: Sequence[SumRun], *, always: bool = False
) -> DenseFile | PlacedDense:
    """The dense weights, wherever they lie. always: rows are compared with their sums whenever they are looked up."""
    if stored.manifest.in_place is not None:
        return PlacedDense(stored, plan, sums, always=always)
    return DenseFile(stored, plan, DenseSums(stored, sums, always=always))


class _Unread:
    """A tensor that is read when it is asked for: moeinf.models.layers.weights.TensorBytes."""

    def __init__(self, kind: Kind, name: str, load: Callable[[str], ByteArray]) -> None:
        self.format: Format = kind.format
        self.shape = kind.shape
        self.num_bytes = kind.num_bytes
        self._name, self._load = name, load

    def pieces(self) -> Iterator[ByteArray]:
        yield self._load(self._name)


def _recipe(place: DensePlace, where: str) -> _Recipe:
    """Raises StoreError for steps that do not make what the place promises."""
    undo = parse_undo(list(place.undo), where)
    kind = outcome([Kind(source.format, source.shape) for source in place.sources], undo)
    if kind is None or kind.shape != place.shape:
        raise StoreError(f"{where} does not become {list(place.shape)}; pull the model again")
    return _Recipe(place, undo, kind)


def _region(source: TensorPlace) -> int:
    return region_bytes(source.offset_bytes, BLOCK_ALIGN_BYTES, source.num_bytes, 1)


def _spec(source: TensorPlace) -> TensorSpec:
    return TensorSpec(source.tensor, source.format, source.shape, source.offset_bytes, source.num_bytes)
