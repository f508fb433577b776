"""Importance matrices of llama.cpp: sums of squares of what each matrix is multiplied with, column by column.

Both forms are read, the one in GGUF and the older one, and the one in GGUF is written as llama-quantize reads it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from moeinf.errors import CheckpointError, UsageError
from moeinf.gguf.cursor import Cursor, opened
from moeinf.gguf.header import Gguf, read_gguf
from moeinf.types import Float32Array

CHUNK: Final = 512  # tokens that llama-imatrix reads at once, unless it is told otherwise; the older form does not say
_SQUARES, _COUNTS = ".in_sum2", ".counts"
_MOST_ENTRIES, _MOST_NAME = 100_000, 500
_ALIGNMENT: Final = 32
_TEXT, _LIST, _WHOLE, _F32 = 8, 9, 4, 0  # as GGUF numbers types


@dataclass(frozen=True, slots=True)
class Sums:
    """Of a matrix, or of the same matrix of all experts of a layer."""

    squares: Float32Array  # [matrices, columns], over all tokens
    counts: Float32Array  # [matrices]: how many tokens

    @property
    def whole(self) -> bool:
        """Whether all of them are numbers that sums of squares can be."""
        return bool(np.isfinite(self.squares).all() and (self.squares >= 0).all() and (self.counts >= 0).all())


@dataclass(frozen=True, slots=True)
class Imatrix:
    """Sums by the names that GGUF files have for matrices, and of which text they are."""

    sums: Mapping[str, Sums]
    texts: tuple[str, ...] = ()
    chunks: int = 0  # pieces of a text that were read, each on its own
    chunk_size: int = CHUNK  # tokens of each, at most


def read_imatrix(path: Path) -> Imatrix:
    """Raises UsageError for a file that is no importance matrix, or that is damaged."""
    if not path.is_file():
        raise UsageError(f"--imatrix {path}: there is no such file; name one that llama-imatrix or moeinf has written")
    try:
        with path.open("rb") as file:
            is_gguf = file.read(4) == b"GGUF"
        found = _of_gguf(read_gguf(path), path) if is_gguf else _of_older_form(path)
    except CheckpointError as error:
        raise UsageError(f"--imatrix {error}") from error
    except OSError as error:
        raise UsageError(f"--imatrix {path}: {error.strerror}; name a file that can be read") from error
    for name, each in found.sums.items():
        if not each.whole:
            raise UsageError(f"--imatrix {path}: {name!r} has sums that are no numbers above 0; make it again")
    return found


def _of_gguf(gguf: Gguf, path: Path) -> Imatrix:
    if gguf.metadata.get("general.type") != "imatrix":
        raise UsageError(f"--imatrix {path} is a GGUF file, but no importance matrix; name one of llama-imatrix")
    sums = {}
    with path.open("rb") as file:

        def numbers(name: str) -> Float32Array:
            tensor = gguf.tensors.get(name)
            if tensor is None or tensor.format != "f32" or len(tensor.shape) > 2:
                raise UsageError(f"--imatrix {path}: {name!r} is missing, or of another type than F32; it is damaged")
            file.seek(tensor.offset_bytes)
            found = np.frombuffer(file.read(tensor.num_bytes), "<f4").astype(np.float32)
            return found.reshape(-1, tensor.shape[-1])

        for name in gguf.tensors:
            if name.endswith(_SQUARES):
                matrix = name.removesuffix(_SQUARES)
                squares, counts = numbers(name), numbers(matrix + _COUNTS).reshape(-1)
                if len(counts) != len(squares):
                    raise UsageError(f"--imatrix {path}: {matrix!r} has {len(counts)} counts of {len(squares)} sums")
                sums[matrix] = Sums(squares, counts)
    texts = gguf.metadata.get("imatrix.datasets", [])
    return Imatrix(
        sums,
        tuple(map(str, texts)) if isinstance(texts, list) else (),
        _whole(gguf, "imatrix.chunk_count", 0),
        _whole(gguf, "imatrix.chunk_size", CHUNK),
    )


def _whole(gguf: Gguf, name: str, default: int) -> int:
    value = gguf.metadata.get(name, default)
    return value if type(value) is int else default


def _of_older_form(path: Path) -> Imatrix:
    """Of each matrix its name, the number of chunks, and the mean squares times that number; all experts together."""
    with opened(path) as (read, num_bytes):
        cursor = Cursor(read, num_bytes, str(path))
        count = cursor.number(4, "its first bytes")
        if not 0 < count <= _MOST_ENTRIES:
            raise UsageError(f"--imatrix {path} is no importance matrix; name one that llama-imatrix has written")
        sums, most = {}, 0
        for number in range(count):
            entry = f"entry {number + 1}"
            length = cursor.number(4, entry)
            if not 0 < length <= _MOST_NAME:
                raise UsageError(f"--imatrix {path} is no importance matrix, or damaged at {entry}")
            name = cursor.take(length, entry).decode("utf-8", "replace")
            chunks, values = cursor.number(4, entry), cursor.number(4, entry)
            squares = np.frombuffer(cursor.take(4 * values, entry), "<f4").astype(np.float32)
            if not chunks or not values:
                continue  # nothing was seen of it
            most = max(most, chunks)
            sums[name] = Sums(squares[None] * CHUNK, np.full(1, chunks * CHUNK, np.float32))
        texts: tuple[str, ...] = ()
        if cursor.num_bytes - cursor.offset >= 8:
            most = cursor.number(4, "the number of chunks")
            texts = (cursor.take(cursor.number(4, "its text"), "its text").decode("utf-8", "replace"),)
        return Imatrix(sums, texts, most)


def imatrix_pieces(imatrix: Imatrix) -> list[bytes | memoryview]:
    """The file in GGUF, in pieces that lie one behind the other; those of sums are the sums' own memory."""
    numbers: dict[str, Float32Array] = {}
    for name, each in sorted(imatrix.sums.items()):
        numbers[name + _SQUARES], numbers[name + _COUNTS] = each.squares, each.counts[:, None]
    fields = (
        _field("general.type", _TEXT, _string("imatrix")),
        _field("imatrix.datasets", _LIST, struct.pack("<IQ", _TEXT, len(imatrix.texts)), *map(_string, imatrix.texts)),
        _field("imatrix.chunk_count", _WHOLE, struct.pack("<I", imatrix.chunks)),
        _field("imatrix.chunk_size", _WHOLE, struct.pack("<I", imatrix.chunk_size)),
    )
    head = [b"GGUF", struct.pack("<IQQ", 3, len(numbers), len(fields)), *fields]
    at = 0
    for name, array in numbers.items():
        matrices, columns = array.shape
        head += [_string(name), struct.pack("<IQQIQ", 2, columns, matrices, _F32, at)]
        at += array.nbytes + -array.nbytes % _ALIGNMENT
    header = b"".join(head)
    return [header, bytes(-len(header) % _ALIGNMENT), *_padded(numbers)]


def _padded(numbers: Mapping[str, Float32Array]) -> Iterator[bytes | memoryview]:
    for array in numbers.values():
        yield np.ascontiguousarray(array, "<f4").view(np.uint8).reshape(-1).data
        yield bytes(-array.nbytes % _ALIGNMENT)


def _field(name: str, kind: int, *content: bytes) -> bytes:
    return b"".join((_string(name), struct.pack("<I", kind), *content))


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
