"""The file of one block: a line that says which file this is, a header in JSON, then the bytes, all under checksums.

"moeinf prefix 1\\n" | length of the header, u32 | its CRC-32C, u32 | header | payload
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

import moeinf._native as _native
from moeinf.errors import StoreError
from moeinf.prefixes.block import TOKEN_TYPE, TokenArray, token_array
from moeinf.store.files import open_regular, parse_json_object, read_fully, write_fully
from moeinf.types import ByteArray, JsonMapping, JsonObject

MAGIC: Final = b"moeinf prefix 1\n"
_HEAD: Final = struct.Struct("<II")
_MOST_HEADER: Final = 1 << 20
_LEAST, _MOST = np.iinfo(TOKEN_TYPE).min, np.iinfo(TOKEN_TYPE).max  # tokens of pictures are below 0


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself."""

    identity: JsonMapping  # of the model and of all that decides which numbers it keeps
    parent: str  # names of blocks, in hex
    digest: str
    start: int  # position of the first token
    tokens: list[int]
    payload_bytes: int
    payload_sum: int  # CRC-32C

    def to_json(self) -> JsonObject:
        return {
            "identity": dict(self.identity),
            "parent": self.parent,
            "digest": self.digest,
            "start": self.start,
            "tokens": self.tokens,
            "payload_bytes": self.payload_bytes,
            "crc32c": self.payload_sum,
        }


def file_size(payload_bytes: int, num_tokens: int) -> int:
    """About what a file takes, from above."""
    return payload_bytes + 4096 + 12 * num_tokens


def write_prefix(path: Path, header: Header, payload: ByteArray) -> None:
    """Writes a new file that only its owner can read, under a name that is not there yet. Raises OSError."""
    text = json.dumps(header.to_json(), separators=(",", ":")).encode()
    head = MAGIC + _HEAD.pack(len(text), _native.crc32c(text)) + text
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_fully(fd, head, 0, path)
        write_fully(fd, payload.data, len(head), path)
    finally:
        os.close(fd)


def read_header(path: Path) -> Header:
    """Reads what a file says of itself. Raises OSError, StoreError where it is damaged."""
    fd = open_regular(path)
    try:
        return _read_header(fd, path)[0]
    finally:
        os.close(fd)


def read_prefix(path: Path, identity: JsonMapping, digest: str, payload_bytes: int) -> tuple[TokenArray, ByteArray]:
    """Reads tokens and payload. Raises OSError, StoreError where the file is damaged or is not of this identity."""
    fd = open_regular(path)
    try:
        header, offset = _read_header(fd, path)
        if dict(header.identity) != dict(identity) or header.digest != digest:
            raise StoreError(f"{path} is not of this model and version")
        if header.payload_bytes != payload_bytes or os.fstat(fd).st_size != offset + payload_bytes:
            raise StoreError(f"{path} has another length than it should")
        payload: ByteArray = np.empty(payload_bytes, np.uint8)
        read_fully(fd, payload.data, offset, path)
    finally:
        os.close(fd)
    if _native.crc32c(payload) != header.payload_sum:
        raise StoreError(f"{path} fails its checksum")
    return token_array(header.tokens), payload


def _read_header(fd: int, path: Path) -> tuple[Header, int]:
    """The header, and where the payload begins."""
    start = bytearray(len(MAGIC) + _HEAD.size)
    if os.fstat(fd).st_size < len(start):
        raise StoreError(f"{path} is cut short")
    read_fully(fd, memoryview(start), 0, path)
    length, checksum = _HEAD.unpack_from(start, len(MAGIC))
    if start[: len(MAGIC)] != MAGIC or length > _MOST_HEADER or os.fstat(fd).st_size < len(start) + length:
        raise StoreError(f"{path} is damaged, or of another version")
    text = bytearray(length)
    read_fully(fd, memoryview(text), len(start), path)
    if _native.crc32c(text) != checksum:
        raise StoreError(f"{path} fails its checksum")
    return _parsed(parse_json_object(text, str(path), StoreError), path), len(start) + length


def _parsed(values: JsonMapping, path: Path) -> Header:
    """Raises StoreError for anything but what `to_json` has made."""
    kinds = {"identity": dict, "parent": str, "digest": str, "start": int, "tokens": list, "payload_bytes": int}
    if not all(isinstance(values.get(name), kind) for name, kind in kinds.items()):
        raise StoreError(f"{path} lacks a field")
    tokens, checksum = values["tokens"], values.get("crc32c")
    if not isinstance(checksum, int) or not all(type(t) is int and _LEAST <= t <= _MOST for t in tokens):
        raise StoreError(f"{path} has fields of other types")
    return Header(
        values["identity"],
        values["parent"],
        values["digest"],
        values["start"],
        tokens,
        values["payload_bytes"],
        checksum,
    )
