"""Compares a stored model with the checksums in its manifest, and looks for what is no number."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

from moeinf.errors import StoreError
from moeinf.store.dense import dense_tensors
from moeinf.store.files import errors_named, fault_of_read, publish, read_small
from moeinf.store.format import DENSE_FILE, VISION_FILE
from moeinf.store.library import SOURCE_RECORD_FILE, StoredModel
from moeinf.store.placed.verify_placed import check_placed, placed_faults
from moeinf.store.spread.whole import divided_copy, fault_of, rests_of
from moeinf.store.sums.checksums import CHECKSUMS_FILE, dump_checksums
from moeinf.store.sums.spans import Finding, Span, check_spans, dense_span, expert_spans, gathered, vision_span
from moeinf.types import SumRun, TensorSpec


def verify(
    model: StoredModel,
    progress: Callable[[int], None] = lambda num_bytes: None,
    note: Callable[[str], None] = lambda line: None,
) -> list[str]:
    """Returns a line for each fault, naming the shard and the expert, or the file. An empty list means sound.

    progress is called with the bytes done since the last call. A model with faults is no longer taken for up to date
    by the next pull, which then makes it anew. A sound one that has no checksums.bin is given it, of which `note` is
    told. Raises StoreError where the manifest itself is damaged, and where the system refuses to read a file, which
    says nothing about the model.
    """
    if (divided := divided_copy(model)) is not None and (fault := fault_of(divided, model)):
        raise StoreError(fault)
    faults: list[str] = []
    sound: list[tuple[Span, Finding]] = []
    placed: tuple[SumRun, ...] = ()
    spans, sums, labels = _expected(model, faults)
    with closing(check_spans(spans)) as results:
        for span, wanted, label, found in zip(spans, sums, labels, results, strict=True):
            if isinstance(found, OSError):
                faults.append(f"{label}: {fault_of_read(found, span.path)}")
            else:
                faults += [f"{label} does not match its checksum"] * (found.sha256 != wanted)
                faults += [f"{label}: {found.fault}"] * bool(found.fault)
                sound.append((span, found))
            progress(span.num_bytes)
    if model.manifest.in_place is not None:
        placed = placed_faults(model, model.manifest.in_place, faults, progress)
    if not faults:
        faults += _compare_sums(model, sound, placed, note)
    if faults:
        with suppress(OSError):  # in a read-only store the report alone has to do
            (model.path / SOURCE_RECORD_FILE).unlink(missing_ok=True)
    return faults


def _compare_sums(
    model: StoredModel, sound: Sequence[tuple[Span, Finding]], placed: tuple[SumRun, ...], note: Callable[[str], None]
) -> list[str]:
    """Compares checksums.bin with what was found. Where the manifest does not list it, it is written."""
    path = model.path / CHECKSUMS_FILE
    names = {shard.file for shard in model.manifest.shards} | {DENSE_FILE, VISION_FILE}
    weights = [pair for pair in sound if pair[0].path.name in names]
    data = dump_checksums(placed or gathered([span for span, _ in weights], [found for _, found in weights]))
    with suppress(OSError):
        if read_small(path) == data:
            return []
    if path.name in model.manifest.file_sizes():
        return [f"{path.name} does not agree with the weights"]
    try:
        publish(path, data)
        note(f"added {path.name}: from now on, the weights of {model.name} are checked while they are read")
    except OSError as error:
        note(f"{path.name} could not be added ({error.strerror}): the weights are not checked while they are read")
    return []


def _expected(model: StoredModel, faults: list[str]) -> tuple[list[Span], list[str], list[str]]:
    """Returns what to hash, with the sum and the words for it. Files of a wrong size go to `faults` at once."""
    manifest = model.manifest
    spans, sums, labels = list[Span](), list[str](), list[str]()
    for layer, (shard, rest) in enumerate(zip(manifest.shards, rests_of(model), strict=False)):
        if _right_size(model.path / shard.file, shard.num_bytes, faults):
            spans += expert_spans(model.path / shard.file, len(shard.sha256), manifest.layout_of(layer), rest)
            sums += shard.sha256
            labels += [f"{shard.file}: expert {expert}" for expert in range(len(shard.sha256))]
    for file in manifest.all_files:
        path = model.path / file.file
        if _right_size(path, file.num_bytes, faults):
            spans.append(_span_of(model, path, file.num_bytes))
            sums.append(file.sha256)
            labels.append(file.file)
    return spans, sums, labels


def _span_of(model: StoredModel, path: Path, num_bytes: int) -> Span:
    if path.name == DENSE_FILE:
        return dense_span(path, num_bytes, _dense_tensors(model), model.manifest.info)
    return vision_span(path, num_bytes) if path.name == VISION_FILE else Span(path, 0, num_bytes)


def _dense_tensors(model: StoredModel) -> Sequence[TensorSpec]:
    """Returns the tensors of the dense file; none where its header is damaged, as its checksum will tell."""
    with suppress(StoreError):
        return dense_tensors(model.dense_path, model.manifest.formats.dense)
    return ()


def _right_size(path: Path, num_bytes: int, faults: list[str]) -> bool:
    try:
        found = path.stat().st_size
    except OSError as error:
        faults.append(f"{path.name}: {fault_of_read(error, path)}")
        return False
    if found != num_bytes:
        faults.append(f"{path.name} is {found} bytes long, not {num_bytes}")
    return found == num_bytes


def check_files(model: StoredModel) -> None:
    """Raises StoreError for the first file that is missing or of a wrong length, or small and not what it was.

    For use before a run: it takes milliseconds. Weights are held against their checksums when they are read.
    """
    faults: list[str] = []
    for name, num_bytes in model.manifest.file_sizes().items():
        if not _right_size(model.path / name, num_bytes, faults):
            raise StoreError(f"{model.name}: {faults[0]}; {model.remedy}")
    for file in model.manifest.files:
        path = model.path / file.file
        if file.file != DENSE_FILE:
            with errors_named(path):
                found = hashlib.sha256(read_small(path)).hexdigest()
            if found != file.sha256:
                raise StoreError(f"{model.name}: {path} does not match its checksum; {model.remedy}")
    if model.manifest.in_place is not None:
        check_placed(model, model.manifest.in_place)
