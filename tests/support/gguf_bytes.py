"""GGUF headers byte by byte: the sound ones, and those that no program writes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

STRING, ARRAY, U32, I32, F32, BOOL, U64 = 8, 9, 4, 5, 6, 7, 10
_FORMS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Entry(NamedTuple):
    """What a header says of a tensor; ne: the columns first, as ggml has them."""

    name: str = "a"
    ne: Sequence[int] = (32, 4)
    type: int = 0
    offset: int = 0


def text(value: str | bytes, length: int | None = None) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data) if length is None else length) + data


def typed(value: Any) -> tuple[int, bytes]:
    """Type and bytes of a value; one that is given as such a pair is taken as it is."""
    if isinstance(value, tuple):
        return value
    if isinstance(value, bool):
        return BOOL, struct.pack("<?", value)
    if isinstance(value, int):
        return U32, struct.pack("<I", value)
    if isinstance(value, float):
        return F32, struct.pack("<f", value)
    if isinstance(value, str):
        return STRING, text(value)
    kind = typed(value[0])[0] if value else STRING
    return ARRAY, struct.pack("<IQ", kind, len(value)) + b"".join(typed(item)[1] for item in value)


def header(
    metadata: Mapping[str, Any] | Sequence[tuple[str, Any]] = (),
    entries: Sequence[Entry] = (),
    *,
    version: int = 3,
    num_tensors: int | None = None,
    num_keys: int | None = None,
) -> bytes:
    fields = list(metadata.items()) if isinstance(metadata, Mapping) else list(metadata)
    counts = (len(entries) if num_tensors is None else num_tensors, len(fields) if num_keys is None else num_keys)
    data = b"GGUF" + struct.pack("<IQQ", version, *counts)
    for name, value in fields:
        kind, content = typed(value)
        data += text(name) + struct.pack("<I", kind) + content
    for entry in entries:
        data += text(entry.name) + struct.pack(f"<I{len(entry.ne)}Q", len(entry.ne), *entry.ne)
        data += struct.pack("<IQ", entry.type, entry.offset)
    return data


def whole(data: bytes, data_bytes: int, alignment: int = 32) -> bytes:
    """A header and so many zeros behind it."""
    return data + bytes(-len(data) % alignment + data_bytes)
