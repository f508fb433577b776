"""Hidden states that stay in the files of their requests until they are asked for: all of them may exceed memory."""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

from moeinf.runtime.io.row_file import RowFile
from moeinf.types import IntArray

HalfArray = npt.NDArray[np.float16]
_REMEDY: Final = "record the trace again, and leave its files as they are while they are used"
_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")  # of a member of a zip file: its signature, bytes of name and extra
_SIGNATURE: Final = b"PK\x03\x04"
_HEADER_BYTES: Final = 1 << 12  # of an npy file, at most


class StoredStates:
    """The states of a request in its file, [tokens, layers, hidden]; an index reads what it names, but for a slice.

    Raises StoreError where the file does not give them any more.
    """

    ndim: Final = 3
    dtype: Final = np.dtype(np.float16)

    def __init__(self, file: RowFile, start: int, shape: tuple[int, int, int]) -> None:
        """start: of the first number in the file."""
        self._file, self._start, self.shape = file, start, shape
        self._row_bytes = self.dtype.itemsize * shape[2]  # of a token in a layer

    def __len__(self) -> int:
        return self.shape[0]

    @overload
    def __getitem__(self, index: slice) -> StoredStates: ...
    @overload
    def __getitem__(self, index: tuple[slice, int] | int) -> HalfArray: ...
    def __getitem__(self, index: slice | tuple[slice, int] | int) -> StoredStates | HalfArray:
        _, layers, hidden = self.shape
        if isinstance(index, slice):
            first, stop, step = index.indices(len(self))
            assert step == 1
            shape = (max(0, stop - first), layers, hidden)
            return StoredStates(self._file, self._start + first * layers * self._row_bytes, shape)
        if isinstance(index, tuple):
            rows = np.arange(len(self))[index[0]] * layers + index[1]
            return self._rows(rows).reshape(-1, hidden)
        return self._rows(index * layers + np.arange(layers)).reshape(layers, hidden)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        found = self._file.read(self._start, math.prod(self.shape) * self.dtype.itemsize).view(np.float16)
        return found.reshape(self.shape).astype(dtype or self.dtype, copy=False)

    def _rows(self, numbers: IntArray) -> HalfArray:
        table = self._file.table(self._start, math.prod(self.shape[:2]), self._row_bytes)
        return table(numbers).view(np.float16)


AnyStates = HalfArray | StoredStates


class JoinedStates:
    """The states of several requests, one behind the other, [tokens, layers, hidden]; an index copies what it names."""

    ndim: Final = 3

    def __init__(self, parts: Sequence[AnyStates]) -> None:
        """parts: [tokens, layers, hidden] each, of one model."""
        self._parts = [part for part in parts if len(part)] or list(parts[:1])
        self._starts: IntArray = np.cumsum([0, *(len(part) for part in self._parts)])
        self.shape = (int(self._starts[-1]), *self._parts[0].shape[1:])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @overload
    def __getitem__(self, index: slice) -> JoinedStates: ...
    @overload
    def __getitem__(self, index: tuple[slice, int] | list[int]) -> HalfArray: ...
    def __getitem__(self, index: slice | tuple[slice, int] | list[int]) -> JoinedStates | HalfArray:
        if isinstance(index, slice):
            return JoinedStates(list(self._between(index)) or [self._parts[0][:0]])
        if isinstance(index, tuple):
            rows, layer = index
            return np.concatenate([part[:, layer] for part in self._between(rows)] or [self._parts[0][:0, layer]])
        found = np.empty((len(index), *self.shape[1:]), np.float16)
        for row, (token, part) in enumerate(zip(index, np.searchsorted(self._starts, index, "right") - 1, strict=True)):
            found[row] = self._parts[part][token - self._starts[part]]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.concatenate(self._parts).astype(dtype or np.float16, copy=False)

    def parts(self) -> Sequence[AnyStates]:
        return self._parts

    def _between(self, rows: slice) -> Iterator[AnyStates]:
        start, stop, step = rows.indices(len(self))
        assert step == 1
        for part, first in zip(self._parts, self._starts.tolist(), strict=False):
            if first < stop and first + len(part) > start:
                yield part[max(0, start - first) : stop - first]


def joined_states(states: Sequence[AnyStates | JoinedStates | None]) -> JoinedStates:
    """None of them is None."""
    parts: list[AnyStates] = []
    for each in states:
        assert each is not None
        parts += each.parts() if isinstance(each, JoinedStates) else [each]
    return JoinedStates(parts)


def states_in(path: Path, member: zipfile.ZipInfo) -> JoinedStates:
    """The states in an npz file's member that is not compressed. Its checksum is compared.

    Raises OSError, and ValueError, TypeError or zipfile.BadZipFile for one that is damaged or holds something else.
    """
    file = RowFile(path, _REMEDY)
    start = _checked_start(file, member)
    header = io.BytesIO(file.read(start, min(member.file_size, _HEADER_BYTES)).data)
    version = np.lib.format.read_magic(header)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(header)
    if dtype != np.float16:
        raise TypeError(f"states of type {dtype} where float16 belongs")
    if fortran or header.tell() + dtype.itemsize * math.prod(shape) != member.file_size:
        raise ValueError(f"{member.filename} is no array in rows")
    if len(shape) != StoredStates.ndim:
        raise ValueError("states do not fit experts")
    return JoinedStates([StoredStates(file, start + header.tell(), shape)])


def _checked_start(file: RowFile, member: zipfile.ZipInfo) -> int:
    """Where the bytes of a member begin that are as its checksum says."""
    head = file.read(member.header_offset, _LOCAL_HEADER.size)
    signature, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(head.data)
    start: int = member.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
    if signature != _SIGNATURE or start + member.file_size > file.num_bytes:
        raise zipfile.BadZipFile(f"{member.filename} is not where the file says")
    checksum = 0
    for piece in file.pieces(start, member.file_size):
        checksum = zlib.crc32(piece.data, checksum)
    if checksum != member.CRC:
        raise zipfile.BadZipFile(f"Bad CRC-32 for file {member.filename!r}")
    return start
