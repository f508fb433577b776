"""The activation matrices of past requests, bounded in number, and which of them resemble the present one."""

from __future__ import annotations

import io
import struct
import tokenize
import zipfile
import zlib
from typing import Final

import numpy as np
import numpy.typing as npt

from moeinf.errors import MALFORMED, StoreError, in_a_line
from moeinf.runtime.policy.policy_trace import ActivationMatrix, count_ids
from moeinf.types import FloatArray, IntArray, MoeShape

CAPACITY: Final = 120  # v3, 4.3: more entries do not predict better
MOST_BYTES: Final = 64 << 20  # of a collection: that of the largest model known takes 11 MB
NUM_MATCHES: Final = 3  # left open by the paper; 1 .. 5 measure alike, more are worse (docs/lab/policies.md)

# What numpy and zipfile raise on damaged bytes; RuntimeError where a flipped bit says "encrypted".
DAMAGE: Final = (
    *MALFORMED,
    OSError,
    EOFError,
    RuntimeError,
    MemoryError,
    SyntaxError,  # of the head of an array, which is Python
    tokenize.TokenError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)

Float32Array = npt.NDArray[np.float32]


def normalise_rows(counts: npt.NDArray[np.int64] | FloatArray) -> FloatArray:
    """Every row [.., E] divided by its sum; a row of zeros stays. So a long request weighs no more than a short one."""
    sums = counts.sum(axis=-1, keepdims=True)
    normal: FloatArray = counts / np.where(sums == 0, 1, sums)
    return normal


def cosine_distance(a: FloatArray, b: FloatArray) -> float:
    """1 - cos of the flattened matrices (v3, 4.3); 1 where one of them is zero."""
    length = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return 1.0 - float((a * b).sum()) / length if length else 1.0


class ActivationCollection:
    """EAMC of arXiv 2401.14361 v3, 4.3: at most `capacity` request matrices; starts empty, grows as requests end."""

    def __init__(self, shape: MoeShape, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            raise ValueError(f"an activation collection needs a capacity of at least 1, not {capacity}")
        self.shape = shape
        self.capacity = capacity
        self.version = 0  # counts changes, so that a match in progress knows that it is stale
        self._size = 0
        layers, experts = shape.num_layers, shape.num_experts
        self._counts: IntArray = np.zeros((capacity, layers, experts), np.int64)
        self.rows: Float32Array = np.zeros((capacity, layers, experts), np.float32)  # row-normalised entries
        self.columns: Float32Array = np.zeros((layers, experts, capacity), np.float32)  # the same, an expert's together
        self.row_squares: FloatArray = np.zeros((layers, capacity))  # squared length of each row of each entry

    def __len__(self) -> int:
        return self._size

    def counts(self, entry: int) -> IntArray:
        """The matrix [L, E] that was added as `entry`."""
        matrix: IntArray = self._counts[entry]
        return matrix

    def add(self, matrix: ActivationMatrix) -> None:
        """Appends; when full, overwrites the entry most similar to the new one (ties: the oldest slot)."""
        if matrix.shape != self.shape:
            raise ValueError(f"a matrix of {matrix.shape} does not belong into a collection of {self.shape}")
        self._put(self._size if self._size < self.capacity else self._most_similar(matrix.counts), matrix.counts)

    def nearest(self, counts: IntArray, num_matches: int) -> IntArray:
        """The entries closest to `counts` [L, E], compared on its non-zero rows; the obvious twin of Match.nearest."""
        seen = counts.sum(axis=1) > 0
        query = normalise_rows(counts)[seen]
        distances = [cosine_distance(query, self.rows[entry][seen].astype(np.float64)) for entry in range(self._size)]
        order: IntArray = np.argsort(distances, kind="stable")[:num_matches]
        return order

    def dumps(self) -> bytes:
        """An npz file; the same collection gives the same bytes."""
        buffer = io.BytesIO()
        shape = np.array([self.shape.num_layers, self.shape.num_experts, self.shape.top_k], np.int64)
        np.savez_compressed(buffer, shape=shape, counts=self._counts[: self._size].astype(np.uint32))
        return buffer.getvalue()

    @classmethod
    def loads(cls, data: bytes, shape: MoeShape, capacity: int = CAPACITY) -> ActivationCollection:
        """The collection that `dumps` wrote; the newest slots when it had more than `capacity`.

        Raises StoreError when `data` is damaged or of a model of another shape.
        """
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as packed:
                if sum(member.file_size for member in packed.infolist()) > MOST_BYTES:
                    raise ValueError(f"more than {MOST_BYTES} bytes when unpacked")
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                stored, counts = (np.asarray(archive[name]) for name in ("shape", "counts"))  # or bytes
        except DAMAGE as error:
            raise StoreError(
                f"the activation collection is damaged ({in_a_line(error)}); delete it to start a new one"
            ) from error
        expected = (shape.num_layers, shape.num_experts)
        same = stored.shape == (3,) and stored.tolist() == [*expected, shape.top_k]
        if not same or counts.shape[1:] != expected or counts.dtype != np.uint32:
            raise StoreError("the activation collection belongs to another model; delete it to start a new one")
        collection = cls(shape, capacity)
        for entry, matrix in enumerate(counts[-capacity:].astype(np.int64)):
            collection._put(entry, matrix)
        return collection

    def _most_similar(self, counts: IntArray) -> int:
        query = normalise_rows(counts).ravel()
        lengths = np.sqrt(self.row_squares[:, : self._size].sum(axis=0))
        return int(np.argmax(self.rows[: self._size].reshape(self._size, -1) @ query / np.where(lengths, lengths, 1)))

    def _put(self, entry: int, counts: IntArray) -> None:
        normal = normalise_rows(counts)
        self._counts[entry] = counts
        self.rows[entry] = normal
        self.columns[:, :, entry] = normal
        self.row_squares[:, entry] = (normal * normal).sum(axis=1)
        self._size = max(self._size, entry + 1)
        self.version += 1


class Match:
    """The running pass (iEAM), compared with a collection as it grows: a routing of k ids adds k columns.

    A layer not behind the last one starts a new pass, and so does a change of the collection. All rows of a pass sum to
    the same, so the order is that of ActivationCollection.nearest without normalising the query.
    """

    def __init__(self, collection: ActivationCollection) -> None:
        self._collection = collection
        self._dots: FloatArray = np.zeros(collection.capacity)
        self._squares: FloatArray = np.zeros(collection.capacity)  # squared length of the entries' rows seen so far
        self.restart()

    def restart(self) -> None:
        """Forgets the running pass."""
        self._dots[:] = 0
        self._squares[:] = 0
        self._last_layer = -1
        self._version = self._collection.version

    def record(self, layer: int, ids: IntArray) -> None:
        """Adds the routing `ids` [tokens, top_k] of `layer`."""
        if layer <= self._last_layer or self._version != self._collection.version:
            self.restart()
        columns = self._collection.columns[layer]
        self._dots += columns[ids[0]].sum(axis=0) if len(ids) == 1 else count_ids(ids, len(columns)) @ columns
        self._squares += self._collection.row_squares[layer]
        self._last_layer = layer

    def nearest(self, num_matches: int) -> IntArray:
        """The closest entries, closest first; none when there are no entries, or nothing was recorded."""
        if self._last_layer < 0 or self._version != self._collection.version:
            return np.zeros(0, np.int64)
        size = len(self._collection)
        similarity = self._dots[:size] / np.sqrt(np.where(self._squares[:size], self._squares[:size], np.inf))
        order: IntArray = np.argsort(-similarity, kind="stable")[:num_matches]
        return order
