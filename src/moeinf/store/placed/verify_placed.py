"""Looks at weights in place: whether their files are still those of the index, and whether their bytes are sound."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from moeinf.errors import StoreError
from moeinf.store.files import errors_named, fault_of_read, open_regular, read_fully, read_small
from moeinf.store.library import StoredModel
from moeinf.store.manifest import Manifest
from moeinf.store.placed.places import InPlace, PlacedFile
from moeinf.store.placed.sums import PlacedRun, placed_runs
from moeinf.store.sums.checksums import CHECKSUMS_FILE, parse_checksums
from moeinf.store.sums.spans import Finding, Span, check_spans
from moeinf.types import SumRun

_NUM_SAMPLES, _SAMPLE_BYTES = 8, 4096  # of each file: few enough for a split of a hundred parts on a slow disk


def header_digest(path: Path, header_bytes: int) -> str:
    """SHA-256 of what is before the tensors of a file, which says where they lie. Raises OSError."""
    data = bytearray(header_bytes)
    fd = open_regular(path)
    with open(fd, "rb"):
        read_fully(fd, memoryview(data), 0, path)
    return hashlib.sha256(data).hexdigest()


def samples_digest(path: Path, num_bytes: int, header_bytes: int) -> str:
    """SHA-256 of a few blocks behind the header, from its first to the last of the file. Raises OSError."""
    found, room = hashlib.sha256(), num_bytes - header_bytes
    size = min(_SAMPLE_BYTES, room)
    fd = open_regular(path)
    with open(fd, "rb"):
        for number in range(_NUM_SAMPLES):
            data = bytearray(size)
            read_fully(fd, memoryview(data), header_bytes + (room - size) * number // (_NUM_SAMPLES - 1), path)
            found.update(data)
    return found.hexdigest()


def changed_file(in_place: InPlace, folder: Path, *, samples: bool) -> str:
    """What is wrong with the first file that is not what it was when it was indexed; "" if all of them are.

    samples: whether some of the weights are compared, too. Where there are checksums, each read tells more.
    """
    return next(filter(None, file_faults(in_place, folder, samples=samples)), "")


def file_faults(in_place: InPlace, folder: Path, *, samples: bool) -> Iterator[str]:
    """What is wrong with each file, "" where nothing is."""
    for file, path in zip(in_place.files, in_place.paths(folder), strict=True):
        yield _file_fault(file, path, samples)


def _file_fault(file: PlacedFile, path: Path, samples: bool) -> str:
    try:
        size = path.stat().st_size
    except OSError as error:
        return f"{path}: {fault_of_read(error, path)}"
    if size != file.num_bytes:
        return f"{path} is {size} bytes long, not {file.num_bytes}"
    with errors_named(path):
        if header_digest(path, file.header_bytes) != file.header_sha256:
            return f"{path} is another file now"
        if samples and file.samples_sha256 and samples_digest(path, size, file.header_bytes) != file.samples_sha256:
            return f"{path} has other weights now"
    return ""


def is_unchecked(model: StoredModel) -> bool:
    """Whether nothing is known of a model's weights but samples of them."""
    return not (model.path / CHECKSUMS_FILE).is_file()


def check_placed(model: StoredModel, in_place: InPlace) -> None:
    """Raises StoreError for the first file that is gone, or another one by now. It reads headers alone."""
    fault = changed_file(in_place, model.path, samples=is_unchecked(model))
    if not fault:
        return
    if not in_place.folder:
        raise StoreError(f"{model.name}: {fault}; {model.remedy}")
    raise StoreError(
        f"{model.name}: {fault}; put the file back, or `moeinf run` it where it is now "
        f"(`moeinf rm {model.name}` forgets this model)"
    )


def _file_spans(in_place: InPlace, folder: Path, runs: list[PlacedRun]) -> list[Span]:
    """All bytes of each file. SHA-256 is computed where there is one to compare it with."""
    spans = []
    for number, (file, path) in enumerate(zip(in_place.files, in_place.paths(folder), strict=True)):
        of_file = [run for run in runs if run.file == number]
        units = {run.tensor.offset_bytes: run.unit_bytes for run in of_file}
        tensors = [run.tensor for run in of_file]
        spans.append(Span(path, 0, file.num_bytes, tensors, units=units, hashed=bool(file.sha256)))
    return spans


def placed_faults(
    model: StoredModel, in_place: InPlace, faults: list[str], progress: Callable[[int], None]
) -> tuple[SumRun, ...]:
    """Returns the checksums of all files, and adds to `faults` a line for each tensor that is not what it was.

    Without checksums to compare with, only what is no number is found, and a file that is not the Hub's.
    """
    fault = changed_file(in_place, model.path, samples=is_unchecked(model))
    if fault:
        faults.append(fault)
        return ()
    return placed_sums(model.manifest, model.path, _known(model, in_place), faults, progress)


def placed_sums(
    manifest: Manifest,
    folder: Path,
    known: dict[tuple[str, int], SumRun],
    faults: list[str],
    progress: Callable[[int], None],
) -> tuple[SumRun, ...]:
    """Reads all files of a model in place; folder: the model's. Adds to `faults` what differs from what is known."""
    in_place = manifest.in_place
    assert in_place is not None
    runs = placed_runs(manifest)
    found: list[SumRun] = []
    spans = _file_spans(in_place, folder, runs)
    with closing(check_spans(spans)) as results:
        for number, (span, file, result) in enumerate(zip(spans, in_place.files, results, strict=True)):
            if isinstance(result, OSError):
                faults.append(f"{span.path.name}: {fault_of_read(result, span.path)}")
            else:
                found += result.runs
                said = len(faults)
                faults += [f"{file.file}: {result.fault}"] * bool(result.fault)
                faults += _damaged([run for run in runs if run.file == number], file, result, known)
                if file.sha256 and result.sha256 != file.sha256 and len(faults) == said:
                    faults.append(f"{file.file} does not match its checksum")
            progress(span.num_bytes)
    return tuple(sorted(found, key=lambda run: (run.file, run.start)))


def _known(model: StoredModel, in_place: InPlace) -> dict[tuple[str, int], SumRun]:
    sizes = model.manifest.file_sizes() | {file.file: file.num_bytes for file in in_place.files}
    path = model.path / CHECKSUMS_FILE
    with suppress(OSError, StoreError):
        return {(run.file, run.start): run for run in parse_checksums(read_small(path), str(path), sizes)}
    return {}


def _damaged(
    runs: list[PlacedRun], file: PlacedFile, found: Finding, known: dict[tuple[str, int], SumRun]
) -> list[str]:
    """A line for each unit whose sum is another than the known one. What lies between tensors is nobody's."""
    lines = []
    of_file = {run.start: run for run in found.runs}
    for run in runs:
        start = run.tensor.offset_bytes
        now, before = of_file[start], known.get((file.file, start))
        if before is None or before.unit_bytes != now.unit_bytes or len(before.sums) != len(now.sums):
            continue
        for unit in np.flatnonzero(now.sums != before.sums).tolist():
            lines.append(f"{file.file}: {run.named(unit)} does not match its checksum")
    return list(dict.fromkeys(lines))
