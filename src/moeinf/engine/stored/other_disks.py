"""Which other disks a model's experts are read from, as the store and --also say."""

from __future__ import annotations

from pathlib import Path

from moeinf.config import RuntimeConfig
from moeinf.engine.reporting import Notify
from moeinf.errors import StoreError, UsageError
from moeinf.runtime.io.reader_protocol import NO_OTHERS, OtherDisks
from moeinf.store.library import StoredModel
from moeinf.store.spread.copy_list import Copy
from moeinf.store.spread.whole import copies_of, copy_paths, divided_copy, fault_of, found_copy, stale_copy, strides_of

NONE = "none"  # of --also


def other_disks(stored: StoredModel, config: RuntimeConfig, notify: Notify) -> OtherDisks:
    """The files that are read there. Tells and raises as `usable_copies` does."""
    copies = usable_copies(stored, config, notify)
    if not copies:
        return NO_OTHERS
    first = copies[0].first_bytes
    cuts = list(zip(strides_of(stored), first, strict=True)) if first else []
    return OtherDisks([copy_paths(copy, stored) for copy in copies], cuts)


def usable_copies(stored: StoredModel, config: RuntimeConfig, notify: Notify) -> list[Copy]:
    """Those that are read. One that was asked for and cannot be used is told of, and left out.

    Raises UsageError where --also leaves out what the model cannot do without, StoreError where that is not there.
    """
    divided = divided_copy(stored)
    if divided is not None:
        _require(divided, stored, config)
        return [divided]
    usable = []
    for copy in _wanted(stored, config, notify):
        if fault := fault_of(copy, stored):
            notify(fault)
        else:
            usable.append(copy)
    return usable


def also_folder(config: RuntimeConfig) -> Path | None:
    """That --also names; None where it names none."""
    also = config.reading.also
    return None if also in ("", NONE) else Path(also).expanduser().absolute()


def _wanted(stored: StoredModel, config: RuntimeConfig, notify: Notify) -> list[Copy]:
    """All that the store knows of, or the one that --also names."""
    folder = also_folder(config)
    if folder is not None:
        if copy := found_copy(stored, folder):
            return [copy]
        spread = f"`moeinf spread {stored.name} --also {folder}` copies them"
        notify(f"--also: {folder} has no experts of {stored.name}; {spread}")
        return []
    if config.reading.also == NONE:
        return []
    if (stale := stale_copy(stored)) is not None:
        notify(
            f"the experts in {stale.folder} are of an earlier state of {stored.name}; `moeinf spread {stored.name} "
            f"--also {stale.folder}` copies those of now"
        )
    return copies_of(stored)


def _require(copy: Copy, stored: StoredModel, config: RuntimeConfig) -> None:
    folder = also_folder(config)
    if config.reading.also == NONE or (folder is not None and not copy.is_in(folder)):
        raise UsageError(
            f"--also {config.reading.also}: experts of {stored.name} are divided between the store and {copy.folder}; "
            f"leave it out, or `moeinf spread {stored.name} --gather` brings them back"
        )
    if fault := fault_of(copy, stored):
        raise StoreError(fault)
