"""Reads the dense weights of a stored model into memory, or through it to a device; tables of rows stay in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from moeinf._native import crc32c
from moeinf.config import RuntimeConfig
from moeinf.errors import StoreError
from moeinf.hardware import usable_cores
from moeinf.models.layers.weights import StoredTensor, TensorBytes, in_file
from moeinf.runtime.io.file_pieces import FilePieces
from moeinf.runtime.io.reader import read_file
from moeinf.runtime.io.reader_protocol import OnWait
from moeinf.runtime.io.row_file import RowFile
from moeinf.store.dense import check_dense, check_part, dense_tensors
from moeinf.store.dense_sums import DenseSums
from moeinf.store.files import errors_named
from moeinf.store.library import StoredModel
from moeinf.threads import mapped
from moeinf.types import FORMAT_BLOCKS, ByteArray, Format, TensorPlan, TensorSpec


def check_against_plan(path: Path, shapes: Mapping[str, tuple[int, ...]], plan: TensorPlan) -> set[str]:
    """Raises StoreError, naming `path`, where the tensors there are not those that the family wants.

    Returns the name of the head, which is needed as a whole also where it is an embedding of which rows are looked up.
    """
    wanted = dict(plan.dense)
    head, stored_head = plan.head or ("", "")
    if stored_head in shapes and head:
        if head not in {*shapes, *plan.lookups}:  # older versions stored it beside the quantised one
            del wanted[head]
        wanted[stored_head] = plan.dense[head]
    for name, shape in shapes.items():
        if wanted.get(name) != shape:
            raise StoreError(
                f"{path}: tensor {name} has shape {shape}, the architecture wants {wanted.get(name)}; "
                "pull the model again"
            )
    missing = sorted(wanted.keys() - shapes.keys())
    if missing:
        raise StoreError(f"{path} lacks tensor {missing[0]}; pull the model again")
    return {stored_head if stored_head in shapes else head}


Kinds = dict[str, tuple[Format, tuple[int, ...]]]  # format and shape of tensors by their names


def plan_of(shapes: Mapping[str, tuple[int, ...]], plan: TensorPlan) -> TensorPlan:
    """The plan of a stored model: a tensor that config.json takes for a copy is stored where it is none."""
    return plan.owning([name for name in plan.copies if name in shapes and not plan.is_ahead(name)])


class DenseSizes:
    """What the tensors of a dense file take in memory, as its header tells.

    Raises StoreError where they are not those of the plan.
    """

    def __init__(self, specs: Sequence[TensorSpec], plan: TensorPlan, path: Path) -> None:
        shapes = {spec.name: spec.shape for spec in specs}
        self.plan = plan = plan_of(shapes, plan)
        in_memory = check_against_plan(path, shapes, plan)
        self.specs = tuple(specs)
        self.in_file = tuple(s for s in specs if s.name in plan.lookups - in_memory)
        self.num_bytes = max((s.offset_bytes + s.num_bytes for s in specs), default=0)

    @property
    def memory_bytes(self) -> int:
        """The memory that the tensors take of the host, or of a device."""
        return self.num_bytes - sum(spec.num_bytes for spec in self.in_file)

    @property
    def kinds(self) -> Kinds:
        """Format and shape of each tensor that is held in memory, by its name."""
        return {spec.name: (spec.dtype, spec.shape) for spec in self.specs if spec not in self.in_file}


class DenseFile:
    """The file dense.safetensors of a model. Raises StoreError where it disagrees with the family's tensor plan."""

    def __init__(self, stored: StoredModel, plan: TensorPlan, sums: DenseSums) -> None:
        self._path, self._remedy, self._sums = stored.dense_path, stored.remedy, sums
        sums.check_header()
        self._sizes = DenseSizes(dense_tensors(self._path, stored.manifest.formats.dense), plan, self._path)
        self._specs, self._in_file, self._num_bytes = self._sizes.specs, self._sizes.in_file, self._sizes.num_bytes
        self._lookups = tuple(s for s in self._specs if s.name in self._sizes.plan.lookups)

    @property
    def memory_bytes(self) -> int:
        """The memory that `read` takes of the host, or `streamed` of a device."""
        return self._sizes.memory_bytes

    @property
    def kinds(self) -> Kinds:
        """Format and shape of each tensor that is held in memory, by its name."""
        return self._sizes.kinds

    def read(
        self, config: RuntimeConfig, progress: Callable[[int, int], None], on_wait: OnWait | None = None
    ) -> dict[str, StoredTensor]:
        """Returns every tensor by name. progress(bytes done, memory_bytes). Raises StoreError."""
        left_out = [(spec.offset_bytes, spec.offset_bytes + spec.num_bytes) for spec in self._in_file]
        memory = read_file(self._path, self._num_bytes, config, progress, left_out, on_wait)
        resident = [spec for spec in self._specs if spec not in self._in_file]
        self._check_sums(resident, memory, config.compute.threads or usable_cores())
        check_dense(self._path, resident, memory.data)
        tensors = {spec.name: _tensor(spec, memory) for spec in resident}
        return tensors | self._looked_up(self._in_file)

    def _check_sums(self, tensors: Sequence[TensorSpec], memory: ByteArray, num_threads: int) -> None:
        """Compares tensors with their checksums in several threads, which are faster than a disk."""
        if not self._sums.known:
            return
        found = mapped(lambda spec: crc32c(memory[spec.offset_bytes :][: spec.num_bytes]), tensors, num_threads)
        for spec, each in zip(tensors, found, strict=True):
            self._sums.check(spec, each)

    @contextmanager
    def streamed(
        self, config: RuntimeConfig, progress: Callable[[int, int], None], on_wait: OnWait | None = None
    ) -> Iterator[Mapping[str, TensorBytes]]:
        """Yields what `read` returns, for a device: a tensor is read while its pieces are asked for.

        No more than a buffer (file_pieces.py) is in memory at any time. progress(bytes done, memory_bytes). Raises
        StoreError, also while pieces are read.
        """
        done = 0

        def count(num_bytes: int) -> None:
            nonlocal done
            done += num_bytes
            progress(done, self.memory_bytes)

        count(0)
        with closing(FilePieces(self._path, self._num_bytes, config, on_wait)) as file:
            yield {
                spec.name: FileTensor(self._path, file, spec, self._sums, count)
                for spec in self._specs
                if spec not in self._in_file
            }

    def lookups(self) -> dict[str, StoredTensor]:
        """Returns the tensors of which rows are looked up, in the file."""
        return self._looked_up(self._lookups)

    def _looked_up(self, tensors: Sequence[TensorSpec]) -> dict[str, StoredTensor]:
        """Tables that stay in the file; each row is checked when it is first used."""
        if not tensors:
            return {}
        with errors_named(self._path):
            file = RowFile(self._path, self._remedy)
        return {spec.name: looked_up(spec, file, self._sums) for spec in tensors}


def looked_up(spec: TensorSpec, file: RowFile, sums: DenseSums) -> StoredTensor:
    """A table that stays in its file; each row is checked when it is first used. Raises StoreError for damage."""
    check = sums.row_check(spec, file.pieces)
    num_rows = spec.shape[0]
    return in_file(spec, file.table(spec.offset_bytes, num_rows, spec.num_bytes // num_rows, check))


class FileTensor:
    """A tensor that lies in a file: moeinf.models.layers.weights.TensorBytes."""

    def __init__(
        self,
        path: Path,
        file: FilePieces,
        spec: TensorSpec,
        sums: DenseSums,
        count: Callable[[int], None] = lambda num_bytes: None,
    ) -> None:
        self._path, self._file, self._spec, self._sums, self._count = path, file, spec, sums, count
        self.format: Format = spec.dtype
        self.shape = spec.shape
        self.num_bytes = spec.num_bytes

    def pieces(self) -> Iterator[ByteArray]:
        """Yields the tensor's bytes, piece by piece.

        Raises StoreError for a read that fails, for a block whose scale is no number, and after the last piece if the
        bytes are not those that were written.
        """
        spec, block_bytes, at, found = self._spec, FORMAT_BLOCKS[self.format][1], 0, 0
        for piece in self._file.read(spec.offset_bytes, spec.num_bytes, block_bytes):
            check_part(self._path, spec, piece.data, at // block_bytes)
            at += len(piece)
            found = crc32c(piece, found)
            yield piece
            self._count(len(piece))
        self._sums.check(spec, found)


def _tensor(spec: TensorSpec, memory: ByteArray) -> StoredTensor:
    data = memory[spec.offset_bytes : spec.offset_bytes + spec.num_bytes]
    return StoredTensor(data, spec.dtype, spec.shape)
