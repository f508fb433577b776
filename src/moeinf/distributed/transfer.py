"""Brings a stored model from rank 0 to a worker that has none, over the group that they have made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from moeinf.distributed.group import Group, LostError
from moeinf.distributed.meeting import Facts, Listener, Offer
from moeinf.errors import StoreError, WorkerError
from moeinf.store.files import errors_named, make_folders, publish, read_small
from moeinf.store.library import Library, StoredModel
from moeinf.store.manifest import MANIFEST_FILE, Manifest, model_id, parse
from moeinf.store.verify import verify
from moeinf.text.quantities import size_text
from moeinf.types import ByteArray
from moeinf.version import __version__

PIECE_BYTES: Final = 4 << 20
WAIT_S: Final = 60.0  # for a piece, or for the other one to check what it has
CHECK_S: Final = 600.0  # for a worker to compare all of it with its checksums
_TAG: Final = 2
_VERDICT_BYTES: Final = 256
_MOST_MANIFEST_BYTES: Final = 1 << 28


def await_model(listener: Listener, library: Library, name: str, tell: Callable[[str], None]) -> StoredModel:
    """Waits for a rank 0, and stores the model that it sends; goes on waiting where that is cut off.

    Raises StoreError for what does not fit its checksums.
    """
    facts, offer = Facts(__version__, "", ""), Offer(0, 0.0, lacks_model=True)
    while True:
        try:
            group = listener.accept(facts, offer, lambda: False)
            assert group is not None
            tell(f"rank 0 sends {name}")
            return receive_model(group, library, name, _said_by_tenths(tell))
        except WorkerError as error:
            tell(str(error))
        except LostError as error:
            tell(f"rank 0 has gone ({error}): what has come is kept")


def _said_by_tenths(tell: Callable[[str], None]) -> Callable[[int, int], None]:
    said = 0

    def progress(done: int, total: int) -> None:
        nonlocal said
        if (tenths := 10 * done // total) > said:
            said = tenths
            tell(f"{10 * tenths} % of {size_text(total)}")

    return progress


def send_model(group: Group, stored: StoredModel) -> None:
    """Sends the manifest, and of its files those that the worker lacks. Raises LostError, WorkerError, StoreError."""
    manifest = stored.manifest
    if manifest.in_place is not None:
        raise WorkerError("it has no model of that name, and this one lies in a GGUF file: copy that file there")
    data = read_small(stored.path / MANIFEST_FILE, _MOST_MANIFEST_BYTES)
    _send(group, np.array([len(data)], np.int64).view(np.uint8))
    _send(group, np.frombuffer(data, np.uint8).copy())
    names = _files_of(manifest)
    lacking: ByteArray = np.empty(len(names), np.uint8)
    group.receive(lacking, _TAG).wait(WAIT_S)
    piece: ByteArray = np.empty(PIECE_BYTES, np.uint8)
    for name, wanted in zip(names, lacking.tolist(), strict=True):
        if not wanted:
            continue
        path, left = stored.path / name, manifest.file_sizes()[name]
        with errors_named(path), path.open("rb") as file:
            while left:
                part = piece[: min(left, PIECE_BYTES)]
                if file.readinto(part.data) != len(part):
                    raise StoreError(f"{path} ends early; {stored.remedy}")
                _send(group, part)
                left -= len(part)
    verdict: ByteArray = np.empty(_VERDICT_BYTES, np.uint8)
    group.receive(verdict, _TAG).wait(CHECK_S)
    if fault := verdict.tobytes().rstrip(b"\0").decode("utf-8", "replace"):
        raise WorkerError(fault)


def receive_model(group: Group, library: Library, name: str, progress: Callable[[int, int], None]) -> StoredModel:
    """Stores what rank 0 sends under this name; what an earlier attempt has left is not sent again.

    progress(bytes done, in all). Raises LostError, and StoreError for what does not fit its checksums.
    """
    length = np.empty(8, np.uint8)
    group.receive(length, _TAG).wait(WAIT_S)
    num_bytes = int(length.view(np.int64)[0])
    if not 0 < num_bytes <= _MOST_MANIFEST_BYTES:
        raise StoreError("rank 0 sends no manifest; run the same moeinf on both")
    data: ByteArray = np.empty(num_bytes, np.uint8)
    group.receive(data, _TAG).wait(WAIT_S)
    manifest, identifier = parse(data.tobytes(), "the manifest of rank 0"), model_id(data.tobytes())
    folder = library.home / "partial" / f"from-rank-0-{identifier}"
    make_folders(folder)
    sizes, names = manifest.file_sizes(), _files_of(manifest)
    lacking = [not _has(folder / each, sizes[each]) for each in names]
    _send(group, np.array(lacking, np.uint8))
    done, total = sum(sizes[each] for each, lacks in zip(names, lacking, strict=True) if not lacks), sum(sizes.values())
    for each in (each for each, lacks in zip(names, lacking, strict=True) if lacks):
        with errors_named(folder / each):
            for part in _pieces(group, folder / each, sizes[each]):
                progress(done := done + part, total)
    publish(folder / MANIFEST_FILE, data.tobytes())
    stored = StoredModel(name, identifier, folder)
    if faults := verify(stored):
        for each in names:
            (folder / each).unlink(missing_ok=True)
        fault = f"{faults[0]}: it was damaged on its way, or at rank 0; check it there with `moeinf verify`"
        _send_verdict(group, fault)
        raise StoreError(fault)
    _send_verdict(group)
    with errors_named(folder), library.lock():
        library.check_origin(name, manifest.source)
        library.adopt(folder, identifier)
        return library.bind(name, identifier, revision=manifest.source.revision)


def _pieces(group: Group, path: Path, num_bytes: int) -> Iterator[int]:
    """Writes a file as it comes, under another name until it is whole; yields the bytes of each piece."""
    partial, left = path.with_name(f".{path.name}.part"), num_bytes
    piece: ByteArray = np.empty(min(PIECE_BYTES, max(1, num_bytes)), np.uint8)
    with partial.open("wb") as file:
        while left:
            part = piece[: min(left, PIECE_BYTES)]
            group.receive(part, _TAG).wait(WAIT_S)
            file.write(part.data)
            left -= len(part)
            yield len(part)
    partial.replace(path)


def _files_of(manifest: Manifest) -> list[str]:
    return sorted(manifest.file_sizes())


def _has(path: Path, num_bytes: int) -> bool:
    return path.is_file() and path.stat().st_size == num_bytes


def _send_verdict(group: Group, fault: str = "") -> None:
    _send(group, np.frombuffer(fault.encode()[:_VERDICT_BYTES].ljust(_VERDICT_BYTES, b"\0"), np.uint8).copy())


def _send(group: Group, data: ByteArray) -> None:
    group.send(data, _TAG).wait(WAIT_S)
