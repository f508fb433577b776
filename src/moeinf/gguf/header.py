"""Headers of GGUF files, read strictly: whatever passes lies inside its file, and overlaps nothing.

A file is a stranger's. No count or length of it is trusted before the bytes that it promises are there, and nothing is
mapped: the header is read in pieces, from a file or from wherever `read` gets them.
"""

from __future__ import annotations

import os
import re
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from moeinf.errors import CheckpointError
from moeinf.gguf.cursor import AGAIN, MAX_HEADER_BYTES, Cursor, Read, opened
from moeinf.store.files import LFS_POINTER, errors_named, stands_for_another
from moeinf.types import Format, block_of, format_bytes

_MAX_TENSORS = 100_000
_MAX_KEYS = 10_000
_MAX_VALUES = 8_000_000  # of all arrays together
_MAX_NAME = 500
_MAX_RANK = 4  # ggml's own
_MAX_ALIGNMENT = 1 << 20
_MAX_PARTS = 1000

FORMATS: Mapping[int, Format] = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 10: "q2_k", 11: "q3_k", 12: "q4_k",
    13: "q5_k", 14: "q6_k", 16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s", 20: "iq4_nl", 21: "iq3_s",
    22: "iq2_s", 23: "iq4_xs", 26: "i32", 29: "iq1_m", 30: "bf16", 34: "tq1_0", 35: "tq2_0", 39: "mxfp4", 40: "nvfp4",
}  # fmt: skip
_OTHER_TYPES = {
    4: "Q4_2, which ggml removed", 5: "Q4_3, which ggml removed", 9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16",
    27: "I64", 28: "F64", 31: "Q4_0_4_4, which ggml removed", 32: "Q4_0_4_8, which ggml removed",
    33: "Q4_0_8_8, which ggml removed", 36: "IQ4_NL_4_4, which ggml removed", 37: "IQ4_NL_4_8, which ggml removed",
    38: "IQ4_NL_8_8, which ggml removed", 41: "Q1_0", 42: "Q2_0",
}  # fmt: skip

_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}  # of module array
_SPLIT_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")

Numbers = array  # of one of the types above
Value = bool | int | float | str | list[str] | list[bool] | Numbers  # type: ignore[type-arg]


@dataclass(frozen=True, slots=True)
class GgufFile:
    """One file of a model."""

    path: Path
    num_bytes: int
    header_bytes: int  # all before the data of tensors


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor, and where it lies."""

    name: str
    format: Format
    shape: tuple[int, ...]  # rows before columns: ggml's numbers, the other way round
    file: int  # index into Gguf.files
    offset_bytes: int  # from the start of that file
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Gguf:
    """A whole model: one file, or all parts of a split."""

    files: tuple[GgufFile, ...]
    metadata: Mapping[str, Value]
    tensors: Mapping[str, GgufTensor]
    mmproj: Gguf | None = None  # its vision tower
    merged: Mapping[str, GgufTensor] = field(default_factory=dict)  # what an adapter has changed: see Placement

    @property
    def where(self) -> str:
        """What errors call it."""
        return str(self.files[0].path)


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What one file says; its tensors are of file 0."""

    num_bytes: int
    header_bytes: int
    metadata: Mapping[str, Value]
    tensors: tuple[GgufTensor, ...]


def read_gguf(path: Path) -> Gguf:
    """Reads the header of a file, or of every part of the split that it belongs to. Raises CheckpointError."""
    if not os.path.lexists(path):
        raise CheckpointError(f"{path}: No such file or directory; check the path")
    header = _read_header(path)
    names = part_names(header, path.name, str(path))
    if len(names) == 1:
        return join_parts([(path, header)])
    parts = []
    for name in names:
        part = path.with_name(name)
        if part != path and not part.is_file():
            raise CheckpointError(
                f"{part} is missing: {path.name} is one of {len(names)} parts; put all of them into one folder"
            )
        parts.append((part, header if part == path else _read_header(part)))
    return join_parts(parts)


def _read_header(path: Path) -> GgufHeader:
    with errors_named(path, CheckpointError), opened(path) as (read, num_bytes):
        return parse_gguf(read, num_bytes, str(path))


def part_names(header: GgufHeader, name: str, where: str) -> list[str]:
    """Names of all files of the model, in order, one of which has this name and header."""
    count = header.metadata.get("split.count", 1)
    if type(count) is not int or not 0 <= count <= _MAX_PARTS:
        raise CheckpointError(f"{where}: split.count is {count!r:.100}; the file is damaged, {AGAIN}")
    if count <= 1:
        return [name]
    found = _SPLIT_NAME.fullmatch(name)
    number = header.metadata.get("split.no")
    if found is None or (int(found[2]) - 1, int(found[3])) != (number, count):
        raise CheckpointError(
            f"{where} is a part of a split (split.no {number!r:.20} of {count}); name all parts as they were "
            f"published: <name>-00001-of-{count:05d}.gguf, and so on"
        )
    return [f"{found[1]}-{part + 1:05d}-of-{count:05d}.gguf" for part in range(count)]


def join_parts(parts: Sequence[tuple[Path, GgufHeader]]) -> Gguf:
    """The model of all files that `part_names` has listed, in that order."""
    first_path, first = parts[0]
    tensors: dict[str, GgufTensor] = {}
    for number, (path, part) in enumerate(parts):
        said = (part.metadata.get("split.count", len(parts)), part.metadata.get("split.no", number))
        if len(parts) > 1 and said != (len(parts), number):
            raise CheckpointError(
                f"{path} is not part {number + 1} of the {len(parts)} that {first_path} names; {AGAIN}"
            )
        for name, value in part.metadata.items():
            if not name.startswith("split.") and first.metadata.get(name, value) != value:
                raise CheckpointError(
                    f"{path}: {name} is {value!r:.50}, and {first.metadata[name]!r:.50} in {first_path.name}: it is a "
                    "part of another model; fetch the parts of one"
                )
        for tensor in part.tensors:
            if tensor.name in tensors:
                raise CheckpointError(f"{path}: tensor {tensor.name!r} is in two parts of the split; {AGAIN}")
            tensors[tensor.name] = replace(tensor, file=number)
        if len(tensors) > _MAX_TENSORS:
            raise CheckpointError(f"{path}: the split has more than {_MAX_TENSORS} tensors; the file is damaged")
    total = first.metadata.get("split.tensors.count", len(tensors))
    if len(parts) > 1 and total != len(tensors):
        raise CheckpointError(
            f"{first_path} promises {total!r:.20} tensors, its parts have {len(tensors)}; fetch them again"
        )
    metadata = {name: value for name, value in first.metadata.items() if not name.startswith("split.")}
    files = tuple(GgufFile(path, part.num_bytes, part.header_bytes) for path, part in parts)
    return Gguf(files, metadata, tensors)


def parse_gguf(read: Read, num_bytes: int, where: str) -> GgufHeader:
    """Parses the header of a file of num_bytes, of which `read` gives any range. Raises CheckpointError."""
    return _Parser(Cursor(read, num_bytes, where), where).header()


class _Parser:
    def __init__(self, cursor: Cursor, where: str) -> None:
        self._cursor, self._where, self._values = cursor, where, 0

    def header(self) -> GgufHeader:
        num_tensors, num_keys = self._start()
        metadata: dict[str, Value] = {}
        for number in range(num_keys):
            name = self._name(f"the name of metadata field {number + 1}")
            if name in metadata:
                raise CheckpointError(f"{self._where}: the metadata field {name!r} is there twice; the file is damaged")
            metadata[name] = self._value(self._cursor.number(4, name), name)
        entries = [self._tensor(number) for number in range(num_tensors)]
        return self._placed(metadata, entries)

    def _start(self) -> tuple[int, int]:
        c, where = self._cursor, self._where
        magic = c.take(4, "its first bytes") if c.num_bytes >= 4 else b""
        if magic == LFS_POINTER[:4]:
            raise CheckpointError(stands_for_another(where))
        if magic != b"GGUF":
            raise CheckpointError(f"{where} is not a GGUF file")
        version = c.number(4, "its first bytes")
        if version >> 16 and not version & 0xFFFF:
            raise CheckpointError(
                f"{where} is a big-endian GGUF file, which moeinf does not read; turn it with gguf_convert_endian.py "
                "of llama.cpp"
            )
        if version not in (2, 3):
            raise CheckpointError(
                f"{where} is a GGUF file of version {version}, moeinf reads 2 and 3; take one of a newer llama.cpp"
            )
        num_tensors, num_keys = (c.number(8, "its first bytes") for _ in range(2))
        if num_tensors > _MAX_TENSORS or num_keys > _MAX_KEYS:
            raise CheckpointError(
                f"{where} promises {num_tensors} tensors and {num_keys} metadata fields; the file is damaged"
            )
        c.require(14 * num_keys + 33 * num_tensors, "its header")
        return num_tensors, num_keys

    def _name(self, what: str) -> str:
        name = self._cursor.string(_MAX_NAME, what)
        if not name or not name.isprintable():
            raise CheckpointError(f"{self._where}: {what} is empty or unprintable; the file is damaged")
        return name

    def _value(self, kind: int, name: str) -> Value:
        c = self._cursor
        if kind == _STRING:
            return c.string(MAX_HEADER_BYTES, name)
        if kind == _BOOL:
            return self._flags(c.take(1, name), name)[0]
        if kind in _NUMBERS:
            number: int | float = self._numbers(kind, 1, name)[0]
            return number
        if kind != _ARRAY:
            raise CheckpointError(f"{self._where}: {name} has the unknown value type {kind}; the file is damaged")
        kind, count = c.number(4, name), c.number(8, name)
        self._values += count
        if self._values > _MAX_VALUES:
            raise CheckpointError(f"{self._where}: {name} has {count} values, too many; the file is damaged")
        if kind == _STRING:
            return c.strings(count, name)
        if kind == _BOOL:
            return self._flags(c.take(count, name), name)
        if kind in _NUMBERS:
            return self._numbers(kind, count, name)
        fault = "arrays within arrays" if kind == _ARRAY else f"values of the unknown type {kind}"
        raise CheckpointError(f"{self._where}: {name} has {fault}, which no GGUF model has; the file is damaged")

    def _numbers(self, kind: int, count: int, name: str) -> Numbers:  # type: ignore[type-arg]
        numbers = array(_NUMBERS[kind])
        numbers.frombytes(self._cursor.take(count * numbers.itemsize, name))
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers

    def _flags(self, data: bytes, name: str) -> list[bool]:
        if data.strip(b"\0\1"):
            raise CheckpointError(f"{self._where}: {name} is neither true nor false; the file is damaged")
        return [byte == 1 for byte in data]

    def _tensor(self, number: int) -> GgufTensor:
        c, what = self._cursor, f"tensor {number + 1}"
        name = self._name(f"the name of {what}")
        what = f"{self._where}: tensor {name!r}"
        rank = c.number(4, name)
        if not 1 <= rank <= _MAX_RANK:
            raise CheckpointError(f"{what} has {rank} dimensions, ggml has at most {_MAX_RANK}; the file is damaged")
        shape = tuple(c.number(8, name) for _ in range(rank))[::-1]
        kind, offset = c.number(4, name), c.number(8, name)
        if not all(0 < size < 1 << 48 for size in shape):
            raise CheckpointError(f"{what} has the shape {list(shape)}; the file is damaged")
        if kind not in FORMATS:
            known = _OTHER_TYPES.get(kind)
            raise CheckpointError(
                f"{what} has the ggml type {kind}"
                + (f" ({known}), which moeinf does not compute" if known else ", which moeinf does not know")
                + "; take a file of another quantisation"
            )
        weights, _ = block_of(FORMATS[kind])
        if shape[-1] % weights:
            raise CheckpointError(
                f"{what} has rows of {shape[-1]}, no whole number of {FORMATS[kind]} blocks of {weights}; it is damaged"
            )
        return GgufTensor(name, FORMATS[kind], shape, 0, offset, format_bytes(FORMATS[kind], shape))

    def _placed(self, metadata: Mapping[str, Value], entries: Sequence[GgufTensor]) -> GgufHeader:
        """Where the data lies: behind the header, from a multiple of the alignment on."""
        where, num_bytes = self._where, self._cursor.num_bytes
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
            raise CheckpointError(f"{where}: general.alignment is {alignment!r:.100}; must be a power of two")
        start = -(-self._cursor.offset // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        end, last = start, ""
        for entry in sorted(entries, key=lambda entry: (entry.offset_bytes, entry.num_bytes)):
            tensor = replace(entry, offset_bytes=start + entry.offset_bytes)
            if entry.offset_bytes % alignment:
                raise CheckpointError(
                    f"{where}: tensor {entry.name!r} lies at {entry.offset_bytes}, no multiple of {alignment}; "
                    "the file is damaged"
                )
            if tensor.offset_bytes < end:
                raise CheckpointError(f"{where}: tensors {last!r} and {entry.name!r} overlap; the file is damaged")
            end, last = tensor.offset_bytes + tensor.num_bytes, tensor.name
            if tensor.name in tensors:
                raise CheckpointError(f"{where}: tensor {entry.name!r} is there twice; the file is damaged")
            tensors[tensor.name] = tensor
        if end > num_bytes and entries:
            raise CheckpointError(f"{where} is truncated: {num_bytes} bytes, its header promises {end}; {AGAIN}")
        return GgufHeader(num_bytes, min(start, num_bytes), metadata, tuple(tensors[entry.name] for entry in entries))
