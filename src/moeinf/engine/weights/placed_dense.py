"""The dense weights of a model in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from moeinf.config import RuntimeConfig
from moeinf.engine.weights.dense_file import DenseFile, Kinds, check_against_plan, plan_of
from moeinf.engine.weights.placed_reads import PlacedReads, recipes_of, region_of
from moeinf.gguf.undo import Kind
from moeinf.models.layers.weights import StoredTensor, TensorBytes
from moeinf.runtime.io.reader_protocol import OnWait
from moeinf.store.dense_sums import DenseSums
from moeinf.store.library import StoredModel
from moeinf.store.placed.places import InPlace
from moeinf.types import ByteArray, Format, SumRun, TensorPlan

_BATCH_BYTES: Final = 256 << 20  # of tensors that are undone, in memory at once


class PlacedSizes:
    """What the dense tensors in place take in memory, as the manifest tells.

    Raises StoreError where they are not what the plan wants.
    """

    def __init__(self, in_place: InPlace, plan: TensorPlan, where: Path) -> None:
        self.recipes = recipes_of(in_place.dense, where)
        shapes = {name: recipe.kind.shape for name, recipe in self.recipes.items()}
        plan = plan_of(shapes, plan)
        in_memory = check_against_plan(where, shapes, plan)
        self.lookups = [name for name in self.recipes if name in plan.lookups and self.recipes[name].as_it_lies]
        self.made_lookups = [name for name in self.recipes if name in plan.lookups and name not in self.lookups]
        self.in_file = [name for name in self.lookups if name not in in_memory]

    @property
    def memory_bytes(self) -> int:
        """The memory that the tensors take."""
        return sum(
            region_of(recipe.place.sources[0]) if recipe.as_it_lies else recipe.kind.num_bytes
            for name, recipe in self.recipes.items()
            if name not in self.in_file
        )

    @property
    def kinds(self) -> Kinds:
        """Format and shape of each tensor that is held in memory, by its name."""
        held = {name: recipe.kind for name, recipe in self.recipes.items() if name not in self.in_file}
        return {name: (kind.format, kind.shape) for name, kind in held.items()}


class PlacedDense:
    """The dense weights of a model in place: as DenseFile. Raises StoreError where they are not what the plan wants."""

    def __init__(self, stored: StoredModel, plan: TensorPlan, runs: Sequence[SumRun], *, always: bool = False) -> None:
        self._reads = PlacedReads(stored, runs, always=always)
        self._sizes = PlacedSizes(self._reads.in_place, plan, stored.path / "manifest.json")
        self._recipes, self._lookups, self._in_file = self._sizes.recipes, self._sizes.lookups, self._sizes.in_file

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
        wanted = [name for name in self._recipes if name not in self._in_file]
        done = 0

        def count(num_bytes: int) -> None:
            nonlocal done
            done += num_bytes
            progress(min(done, self.memory_bytes), self.memory_bytes)

        count(0)
        tensors: dict[str, StoredTensor] = {}
        for batch in self._batches(wanted):
            tensors |= self._reads.read([self._recipes[name] for name in batch], config, on_wait, count)
        return tensors | self._looked_up(self._in_file)

    @contextmanager
    def streamed(
        self, config: RuntimeConfig, progress: Callable[[int, int], None], on_wait: OnWait | None = None
    ) -> Iterator[Mapping[str, TensorBytes]]:
        """Yields what `read` returns, for a device: a tensor is read when its pieces are asked for."""
        done = 0

        def load(name: str) -> ByteArray:
            nonlocal done
            tensor = self._reads.read([self._recipes[name]], config, on_wait)[name]
            done += tensor.num_bytes
            progress(min(done, self.memory_bytes), self.memory_bytes)
            return tensor.data

        progress(0, self.memory_bytes)
        yield {
            name: _Unread(recipe.kind, name, load)
            for name, recipe in self._recipes.items()
            if name not in self._in_file
        }

    def lookups(self) -> dict[str, StoredTensor]:
        """Returns the tensors of which rows are looked up, in their files as far as they are as they lie."""
        made = {name: self._reads.made_lookup(self._recipes[name]) for name in self._sizes.made_lookups}
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

    def _looked_up(self, names: Sequence[str]) -> dict[str, StoredTensor]:
        return {name: self._reads.looked_up(self._recipes[name]) for name in names}


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
