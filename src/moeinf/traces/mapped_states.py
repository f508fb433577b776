"""Hidden states that stay in the files of their requests until they are asked for: all of them may exceed memory."""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Final, overload

import numpy as np
import numpy.typing as npt

from moeinf.types import IntArray

HalfArray = npt.NDArray[np.float16]
_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")  # of a member of a zip file: its signature, bytes of name and extra
_SIGNATURE: Final = b"PK\x03\x04"
_HEADER_BYTES: Final = 1 << 12  # of an npy file, at most
_CHUNK_BYTES: Final = 1 << 20


class JoinedStates:
    """The states of several requests, one behind the other, [tokens, layers, hidden]; an index copies what it names."""

    ndim: Final = 3

    def __init__(self, parts: Sequence[HalfArray]) -> None:
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

    def parts(self) -> Sequence[HalfArray]:
        return self._parts

    def _between(self, rows: slice) -> Iterator[HalfArray]:
        start, stop, step = rows.indices(len(self))
        assert step == 1
        for part, first in zip(self._parts, self._starts.tolist(), strict=False):
            if first < stop and first + len(part) > start:
                yield part[max(0, start - first) : stop - first]


def joined_states(states: Sequence[HalfArray | JoinedStates | None]) -> JoinedStates:
    """None of them is None."""
    parts: list[HalfArray] = []
    for each in states:
        assert each is not None
        parts += each.parts() if isinstance(each, JoinedStates) else [each]
    return JoinedStates(parts)


def mapped_array(file: BinaryIO, member: zipfile.ZipInfo) -> Any:
    """The array of an npz file's member that is not compressed, mapped from the file, which must not become shorter.

    Its checksum is compared. Raises ValueError or zipfile.BadZipFile for one that is damaged.
    """
    start = _checked_start(file, member)
    file.seek(start)
    header = io.BytesIO(file.read(min(member.file_size, _HEADER_BYTES)))
    version = np.lib.format.read_magic(header)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(header)
    if fortran or dtype.hasobject or header.tell() + dtype.itemsize * math.prod(shape) != member.file_size:
        raise ValueError(f"{member.filename} is no array in rows")
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.memmap(file, dtype, "r", start + header.tell(), shape)


def _checked_start(file: BinaryIO, member: zipfile.ZipInfo) -> int:
    """Where the bytes of a member begin that are as its checksum says."""
    file.seek(member.header_offset)
    signature, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    start: int = member.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
    if signature != _SIGNATURE or start + member.file_size > file.seek(0, io.SEEK_END):
        raise zipfile.BadZipFile(f"{member.filename} is not where the file says")
    file.seek(start)
    checksum, left = 0, member.file_size
    while left:
        chunk = file.read(min(left, _CHUNK_BYTES))
        checksum, left = zlib.crc32(chunk, checksum), left - len(chunk)
    if checksum != member.CRC:
        raise zipfile.BadZipFile(f"Bad CRC-32 for file {member.filename!r}")
    return start
