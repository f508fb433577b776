"""Brings a stored model from rank 0 to a worker that has none, over the link that they have made."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from moeinf.distributed.link import Link, LostError, MalformedError, printable
from moeinf.distributed.listener import Listener
from moeinf.distributed.meeting import Facts, Offer
from moeinf.errors import MoeinfError, StoreError, WorkerError
from moeinf.store.files import errors_named, make_folders, publish, read_small
from moeinf.store.library import Library, StoredModel
from moeinf.store.manifest import MANIFEST_FILE, Manifest, model_id, parse
from moeinf.store.processes.partials import pull_lock
from moeinf.store.spread.file_parts import opened
from moeinf.store.spread.whole import rests_of
from moeinf.store.verify import verify
from moeinf.text.quantities import size_text
from moeinf.types import ByteArray
from moeinf.version import __version__

PIECE_BYTES: Final = 4 << 20
WAIT_S: Final = 60.0  # for a piece, or for the other one to check what it has
CHECK_S: Final = 600.0  # for a worker to compare all of it with its checksums
_LENGTH: Final = struct.Struct("!q")
_VERDICT_BYTES: Final = 256
_MOST_MANIFEST_BYTES: Final = 1 << 28


def await_model(listener: Listener, library: Library, name: str, tell: Callable[[str], None]) -> StoredModel:
    """Waits for a rank 0, and stores the model that it sends; goes on waiting where that fails, and tells why."""
    facts, offer = Facts(__version__, "", ""), Offer(0, 0.0, lacks_model=True)
    while True:
        link = listener.accept(facts, offer, lambda: False)
        assert link is not None
        tell(f"rank 0 sends {name}")
        try:
            return receive_model(link, library, name, _said_by_tenths(tell))
        except MoeinfError as error:
            tell(f"{name} is not stored: {error}")
        except LostError as error:
            tell(f"rank 0 has gone ({error}): what has come is kept")
        finally:
            link.close()


def _said_by_tenths(tell: Callable[[str], None]) -> Callable[[int, int], None]:
    said = 0

    def progress(done: int, total: int) -> None:
        nonlocal said
        if (tenths := 10 * done // total) > said:
            said = tenths
            tell(f"{10 * tenths} % of {size_text(total)}")

    return progress


def send_model(link: Link, stored: StoredModel) -> None:
    """Sends the manifest, and of its files those that the worker lacks. Raises LostError, WorkerError, StoreError."""
    manifest = stored.manifest
    if manifest.in_place is not None:
        raise WorkerError(
            "it has no model of that name, and this one lies in a GGUF file: copy that file there, or pull it here "
            "with --repack, which can be sent"
        )
    data = read_small(stored.path / MANIFEST_FILE, _MOST_MANIFEST_BYTES)
    link.send(_LENGTH.pack(len(data)), WAIT_S)
    link.send(data, WAIT_S)
    names = _files_of(manifest)
    lacking: ByteArray = np.empty(len(names), np.uint8)
    link.receive(lacking, WAIT_S)
    piece: ByteArray = np.empty(PIECE_BYTES, np.uint8)
    rests = {path.name: rest for path, rest in zip(stored.shard_paths, rests_of(stored), strict=True)}
    for name, wanted in zip(names, lacking.tolist(), strict=True):
        if not wanted:
            continue
        path, size = stored.path / name, manifest.file_sizes()[name]
        with errors_named(path), opened(path, rests.get(name)) as file:
            for at in range(0, size, PIECE_BYTES):
                part = piece[: min(size - at, PIECE_BYTES)]
                file.read(part.data, at)
                link.send(part, WAIT_S)
    verdict = bytearray(_VERDICT_BYTES)
    link.receive(verdict, CHECK_S)
    if fault := printable(verdict.rstrip(b"\0")):
        raise WorkerError(fault)


def receive_model(link: Link, library: Library, name: str, progress: Callable[[int, int], None]) -> StoredModel:
    """Stores what rank 0 sends under this name; what an earlier attempt has left is not sent again.

    progress(bytes done, in all). Raises LostError, and StoreError for what is no manifest or does not fit its sums.
    """
    length = bytearray(_LENGTH.size)
    link.receive(length, WAIT_S)
    (num_bytes,) = _LENGTH.unpack(length)
    if not 0 < num_bytes <= _MOST_MANIFEST_BYTES:
        raise MalformedError(f"it sent a manifest of {num_bytes} bytes")
    received = bytearray(num_bytes)
    link.receive(received, WAIT_S)
    data = bytes(received)
    manifest, identifier = parse(data, "the manifest of rank 0"), model_id(data)
    folder = library.home / "partial" / f"from-rank-0-{identifier}"
    with pull_lock(folder, name):  # so that nobody takes it for what a process that was killed has left
        return _received(link, library, StoredModel(name, identifier, folder), manifest, data, progress)


def _received(
    link: Link,
    library: Library,
    stored: StoredModel,
    manifest: Manifest,
    data: bytes,
    progress: Callable[[int, int], None],
) -> StoredModel:
    """Receives the files of a model into its work folder, and publishes it. data: of its manifest."""
    folder = stored.path
    make_folders(folder)
    sizes, names = manifest.file_sizes(), _files_of(manifest)
    lacking = [not _has(folder / each, sizes[each]) for each in names]
    link.send(bytes(lacking), WAIT_S)
    done, total = sum(sizes[each] for each, lacks in zip(names, lacking, strict=True) if not lacks), sum(sizes.values())
    for each in (each for each, lacks in zip(names, lacking, strict=True) if lacks):
        with errors_named(folder / each):
            for part in _pieces(link, folder / each, sizes[each]):
                progress(done := done + part, total)
    publish(folder / MANIFEST_FILE, data)
    if faults := verify(stored):
        for each in names:
            (folder / each).unlink(missing_ok=True)
        fault = f"{faults[0]}: it was damaged on its way, or at rank 0; check it there with `moeinf verify`"
        _send_verdict(link, fault)
        raise StoreError(fault)
    _send_verdict(link)
    return library.publish(folder, stored.id, stored.name, manifest.source)


def _pieces(link: Link, path: Path, num_bytes: int) -> Iterator[int]:
    """Writes a file as it comes, under another name until it is whole; yields the bytes of each piece."""
    partial, left = path.with_name(f".{path.name}.part"), num_bytes
    piece: ByteArray = np.empty(min(PIECE_BYTES, max(1, num_bytes)), np.uint8)
    with partial.open("wb") as file:
        while left:
            part = piece[: min(left, PIECE_BYTES)]
            link.receive(part, WAIT_S)
            file.write(part.data)
            left -= len(part)
            yield len(part)
    partial.replace(path)


def _files_of(manifest: Manifest) -> list[str]:
    return sorted(manifest.file_sizes())


def _has(path: Path, num_bytes: int) -> bool:
    return path.is_file() and path.stat().st_size == num_bytes


def _send_verdict(link: Link, fault: str = "") -> None:
    link.send(fault.encode()[:_VERDICT_BYTES].ljust(_VERDICT_BYTES, b"\0"), WAIT_S)
