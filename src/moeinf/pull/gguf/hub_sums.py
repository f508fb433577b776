"""Computes the checksums of weights in place, before their model is published."""

from __future__ import annotations

from pathlib import Path

from moeinf.errors import CheckpointError
from moeinf.pull.events import PullProgress
from moeinf.store.manifest import Manifest
from moeinf.store.placed.verify_placed import placed_sums
from moeinf.store.sums.checksums import dump_checksums


def checksums_of(manifest: Manifest, folder: Path, name: str, progress: PullProgress) -> bytes:
    """The content of checksums.bin. folder: the model's. Raises CheckpointError for a scale that is no number."""
    assert manifest.in_place is not None
    total = manifest.in_place.num_bytes
    progress.total("verifying", total, 0)
    progress.start("verifying", name, total, 0)
    faults: list[str] = []
    runs = placed_sums(manifest, folder, {}, faults, progress.advance)
    progress.finish()
    if faults:
        raise CheckpointError(f"{faults[0]}; fetch the file again, or take another one")
    return dump_checksums(runs)
