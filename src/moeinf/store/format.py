"""The two binary forms of the store: safetensors headers, read strictly and written, and blocks of experts."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from moeinf.errors import CheckpointError, MoeinfError
from moeinf.store.files import LFS_POINTER, open_regular, parse_json_object, read_fully, stands_for_another
from moeinf.types import (
    BLOCK_ALIGN_BYTES,
    FORMAT_BLOCKS,
    TENSOR_ALIGN_BYTES,
    DType,
    ExpertLayout,
    Format,
    Json,
    JsonMapping,
    JsonObject,
    TensorSpec,
    block_of,
    format_bytes,
)

DENSE_FILE = "dense.safetensors"
AHEAD_FILE = "ahead.safetensors"  # layers that predict further tokens, as published; no run reads it
MERGED_FILE = "merged.safetensors"  # of a model in place, what an adapter has changed
VISION_FILE = "vision.safetensors"  # the tower that sees pictures, as it was published
MAX_HEADER_BYTES = 100_000_000  # the safetensors library's own limit
_MAX_RANK = 8
_MAX_NAME = 500
_MAX_TENSORS = 100_000  # of one file
_MAX_COMMAS = 12 * _MAX_TENSORS  # between the fields of a tensor of that rank, and behind it

STORE_DTYPES: Mapping[str, DType] = {"BF16": "bf16", "F16": "f16", "F32": "f32"}
_FILE_DTYPES: Mapping[Format, str] = {dtype: name for name, dtype in STORE_DTYPES.items()}
BLOCK_DTYPE = "U8"  # as which a safetensors file holds blocks of a quantised tensor
# Bits, as the packed types have less than a byte an element.
_DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a safetensors file; offset_bytes counts from the start of the file."""

    name: str
    dtype: str  # as the file spells it: BF16, F8_E4M3, ...
    shape: tuple[int, ...]
    offset_bytes: int
    num_bytes: int


Header = Mapping[str, TensorEntry]


class BlockTensor(NamedTuple):
    """Format and shape of a quantised tensor in a dense file, which the file itself cannot tell."""

    format: Format
    shape: tuple[int, ...]

    def file_shape(self) -> tuple[int, int]:
        """The shape that the file gives it: [rows, bytes per row]."""
        row_bytes = format_bytes(self.format, self.shape[-1:])
        return math.prod(self.shape[:-1]), row_bytes


def is_quantised(format: Format) -> bool:
    return block_of(format)[0] > 1


def is_table(tensor: str) -> bool:
    """Whether a dense tensor is a table of n-grams, of which rows are looked up beside those of the embedding."""
    return ".ngram_embedding." in tensor


def is_head(tensor: str) -> bool:
    """Whether a dense tensor is the matrix that makes logits, under the name that it is stored under if quantised."""
    return tensor.split(".")[0] == "lm_head"


def shard_file(layer: int) -> str:
    return f"experts-{layer:05d}.bin"


def header_length(first_8: bytes, file_bytes: int, where: str, error_type: type[MoeinfError] = CheckpointError) -> int:
    """Returns the length of the JSON header that follows the first 8 bytes of a safetensors file."""
    if len(first_8) < 8:
        raise error_type(f"{where} is {len(first_8)} bytes long: truncated, fetch it again")
    if first_8 == LFS_POINTER[:8]:
        raise error_type(stands_for_another(where))
    length = int.from_bytes(first_8, "little")
    if length > MAX_HEADER_BYTES:
        raise error_type(f"{where} is not a safetensors file (a header of {length} bytes)")
    if 8 + length > file_bytes:
        raise error_type(f"{where} is truncated inside its header ({file_bytes} bytes); fetch it again")
    return length


def parse_header(
    data: bytes | bytearray, file_bytes: int, where: str, error_type: type[MoeinfError] = CheckpointError
) -> Header:
    """Returns tensors by name from a safetensors header (without its 8 length bytes) of a file of file_bytes.

    Parsing is validating: what is returned lies inside the file, and fills it without hole or overlap. Raises
    error_type, naming the file and the tensor.
    """
    if not data.startswith(b"{"):
        raise error_type(f"{where} is not a safetensors file (the header is not a JSON object)")
    # Before a value is made of each: as Python's values a header takes many times its length.
    if data.count(b"{") > _MAX_TENSORS + 2 or data.count(b",") > _MAX_COMMAS:
        raise error_type(f"{where} names more than {_MAX_TENSORS} tensors in one file; split it into shards")
    fields = parse_json_object(data, f"the header of {where}", error_type)
    metadata = fields.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise error_type(f"the header of {where}: __metadata__ must be an object of texts")
    start = 8 + len(data)
    entries = [
        _parse_entry(name, value, start, f"{where}: tensor {name!r:.200}", error_type) for name, value in fields.items()
    ]
    entries.sort(key=lambda entry: (entry.offset_bytes, entry.num_bytes))
    end = start
    for entry in entries:
        if entry.offset_bytes != end:
            fault = "overlaps another tensor" if entry.offset_bytes < end else "leaves a hole before it"
            raise error_type(f"{where}: tensor {entry.name!r} {fault}; the file is damaged")
        end += entry.num_bytes
    if end > file_bytes:
        raise error_type(f"{where} is truncated: {file_bytes} bytes, its header promises {end}; fetch it again")
    if end < file_bytes:
        raise error_type(f"{where} has {file_bytes - end} bytes behind its last tensor; the file is damaged")
    return {entry.name: entry for entry in entries}


def _parse_entry(name: str, value: Json, start: int, where: str, error_type: type[MoeinfError]) -> TensorEntry:
    if not 0 < len(name) <= _MAX_NAME or not name.isprintable():  # what would reach terminals and file names
        raise error_type(f"{where} has an empty, unprintable or endless name")
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise error_type(f"{where} must have dtype, shape and data_offsets and nothing else")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPE_BITS:
        raise error_type(f"{where} has the unknown dtype {dtype!r:.100}")
    if not _naturals(shape) or len(shape) > _MAX_RANK:
        raise error_type(f"{where} has the shape {str(shape)[:100]}: must be at most {_MAX_RANK} whole numbers")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise error_type(f"{where} has the data_offsets {str(offsets)[:100]}: must be [begin, end]")
    bits = math.prod(shape) * _DTYPE_BITS[dtype]
    if bits != 8 * (offsets[1] - offsets[0]):
        raise error_type(
            f"{where}: {dtype} {shape} takes {bits / 8:g} bytes, data_offsets give {offsets[1] - offsets[0]}"
        )
    return TensorEntry(name, dtype, tuple(shape), start + offsets[0], offsets[1] - offsets[0])


def _naturals(value: Json) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)


def read_header(path: Path, error_type: type[MoeinfError] = CheckpointError) -> Header:
    """Reads the header of a safetensors file. Raises error_type for its content, OSError for the disk."""
    fd = open_regular(path)
    try:
        size = os.fstat(fd).st_size
        first = bytearray(min(8, size))
        read_fully(fd, memoryview(first), 0, path)
        data = bytearray(header_length(bytes(first), size, str(path), error_type))
        read_fully(fd, memoryview(data), 8, path)
    finally:
        os.close(fd)
    return parse_header(data, size, str(path), error_type)


def dense_header(tensors: Mapping[str, tuple[Format, tuple[int, ...]]]) -> tuple[bytes, tuple[TensorSpec, ...]]:
    """Returns the head of a dense file (length, JSON, spaces), and where each tensor lies, in file order.

    Tensors whose size is a multiple of TENSOR_ALIGN_BYTES come first: the format allows no gaps, so this order is
    what aligns them. The rest follows with wide elements first, so that each is aligned to its own elements.
    Quantised ones are bytes to the file: their blocks, [rows, bytes per row].
    """

    def order(name: str) -> tuple[bool, int, str]:
        format, shape = tensors[name]
        width = 1 if is_quantised(format) else FORMAT_BLOCKS[format][1]
        return format_bytes(format, shape) % TENSOR_ALIGN_BYTES != 0, -width, name

    fields: JsonObject = {"__metadata__": {"format": "pt"}}
    specs, end = [], 0
    for name in sorted(tensors, key=order):
        format, shape = tensors[name]
        num_bytes = format_bytes(format, shape)
        file_shape = BlockTensor(format, shape).file_shape() if is_quantised(format) else shape
        fields[name] = {
            "dtype": _FILE_DTYPES.get(format, BLOCK_DTYPE),
            "shape": list(file_shape),
            "data_offsets": [end, end + num_bytes],
        }
        specs.append(TensorSpec(name, format, shape, end, num_bytes))
        end += num_bytes
    head = _padded(fields)
    placed = (TensorSpec(s.name, s.dtype, s.shape, len(head) + s.offset_bytes, s.num_bytes) for s in specs)
    return head, tuple(placed)


def raw_header(tensors: Mapping[str, TensorEntry]) -> tuple[bytes, Mapping[str, int]]:
    """Returns the head of a file that keeps tensors of any dtype as they are, and where in it each begins."""
    fields: JsonObject = {"__metadata__": {"format": "pt"}}
    places, end = dict[str, int](), 0
    for name in sorted(tensors):
        entry = tensors[name]
        fields[name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [end, end + entry.num_bytes]}
        places[name], end = end, end + entry.num_bytes
    head = _padded(fields)
    return head, {name: len(head) + place for name, place in places.items()}


def _padded(fields: JsonMapping) -> bytes:
    """Length and JSON, with spaces up to a block border, as direct reads want."""
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    length = round_up(8 + len(text), BLOCK_ALIGN_BYTES) - 8
    return length.to_bytes(8, "little") + text.ljust(length)


def expert_layout(parts: Sequence[tuple[str, Format, tuple[int, ...]]]) -> ExpertLayout:
    """Lays out the block of one expert: parts in the given order, each on a TENSOR_ALIGN_BYTES border."""
    specs, end = [], 0
    for name, format, shape in parts:
        offset = round_up(end, TENSOR_ALIGN_BYTES)
        end = offset + format_bytes(format, shape)
        specs.append(TensorSpec(name, format, shape, offset, end - offset))
    return ExpertLayout(tuple(specs), end, round_up(end, BLOCK_ALIGN_BYTES))


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step
