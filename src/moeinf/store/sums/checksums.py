"""checksums.bin: fast sums of what a run reads, so that it can hold every block against them as it comes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from moeinf.errors import StoreError
from moeinf.store.files import fault_of_read, parse_json_object, read_small
from moeinf.store.library import StoredModel
from moeinf.store.placed.sums import covers_experts
from moeinf.types import Json, SumRun

CHECKSUMS_FILE: Final = "checksums.bin"
_MAGIC: Final = b"moeinf checksums 1\n"
_DIGEST_BYTES: Final = 32
_LARGEST: Final = 1 << 62


def dump_checksums(runs: Sequence[SumRun]) -> bytes:
    """The file's bytes: a line that says which file this is, one with the runs, all sums, and SHA-256 of all that."""
    table = [[run.file, run.start, run.num_bytes, run.unit_bytes] for run in runs]
    head = json.dumps({"runs": table}, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    data = _MAGIC + head + b"".join(run.sums.astype("<u4").tobytes() for run in runs)
    return data + hashlib.sha256(data).digest()


def sums_of(model: StoredModel) -> tuple[tuple[SumRun, ...], str]:
    """Returns the checksums of a model's weights; without any, also a line that says why.

    Raises StoreError where the manifest lists the file, and it is damaged or leaves experts out; and where the system
    refuses to read it.
    """
    manifest, path = model.manifest, model.path / CHECKSUMS_FILE
    sizes = manifest.file_sizes()
    shards = {
        (shard.file, 0, shard.num_bytes, manifest.layout_of(layer).stride_bytes)
        for layer, shard in enumerate(manifest.shards)
    }
    in_place = manifest.in_place
    if in_place is not None:
        sizes |= {file.file: file.num_bytes for file in in_place.files}
    data, fault = b"", ""
    try:
        data = read_small(path)
    except OSError as error:
        fault = fault_of_read(error, path)
    try:
        if fault:
            raise StoreError(f"{path}: {fault}")
        runs = parse_checksums(data, str(path), sizes)
        units = [(run.file, run.start, run.num_bytes, run.unit_bytes) for run in runs]
        if not shards <= set(units) or (in_place is not None and not covers_experts(manifest, units)):
            raise StoreError(f"{path} does not cover every expert")
        return runs, ""
    except StoreError as error:
        if CHECKSUMS_FILE in sizes:
            raise StoreError(f"{model.name}: {error}; {model.remedy}") from error
        missing = "it was pulled before stores had checksums for that"
        if in_place is not None:
            missing = "a GGUF file has no checksums"
        reason = str(error) if path.exists() else missing
        return (), (
            f"the weights of {model.name} are not checked while they are read: {reason}; "
            f"`moeinf verify {model.name}` adds the checksums"
        )


def parse_checksums(data: bytes, where: str, sizes: Mapping[str, int]) -> tuple[SumRun, ...]:
    """Parses the file. sizes: those of the files that it may name. Raises StoreError where it is damaged."""
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if not body.startswith(_MAGIC) or hashlib.sha256(body).digest() != digest:
        raise StoreError(f"{where} is damaged, or of another version")
    head, newline, sums = body[len(_MAGIC) :].partition(b"\n")
    table = parse_json_object(head, where, StoreError).get("runs") if newline else None
    if not isinstance(table, list) or not table or not all(_is_run(item, sizes) for item in table):
        raise StoreError(f"{where}: its runs do not fit the files")
    counts = [-(-num_bytes // unit_bytes) for _, _, num_bytes, unit_bytes in table]
    if len(sums) != 4 * sum(counts):
        raise StoreError(f"{where} has {len(sums)} bytes of sums, not {4 * sum(counts)}")
    values = np.split(np.frombuffer(sums, "<u4").astype(np.uint32), np.cumsum(counts[:-1]))
    return tuple(
        SumRun(file, start, num_bytes, unit_bytes, each)
        for (file, start, num_bytes, unit_bytes), each in zip(table, values, strict=True)
    )


def _is_run(item: Json, sizes: Mapping[str, int]) -> bool:
    """Tells whether an entry names a known file, and bytes in it by whole numbers."""
    if not isinstance(item, list) or len(item) != 4 or not isinstance(item[0], str) or item[0] not in sizes:
        return False
    if not all(type(number) is int and 0 <= number <= _LARGEST for number in item[1:]):
        return False
    _, start, num_bytes, unit_bytes = item
    return bool(0 < unit_bytes <= num_bytes <= sizes[item[0]] - start)
