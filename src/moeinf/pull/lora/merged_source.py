"""A checkpoint with an adapter merged into its weights, as a source of a pull."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from moeinf.errors import CheckpointError
from moeinf.models.family import family_of
from moeinf.pull.checkpoint.tensors import Tensors
from moeinf.pull.coded.declared import declared_by
from moeinf.pull.events import PullProgress
from moeinf.pull.lora.adapter import Adapter
from moeinf.pull.lora.merging import Weights, merge
from moeinf.pull.lora.placed import Placed, placed
from moeinf.pull.source import Source, read_config
from moeinf.store.files import errors_named, sync_folder
from moeinf.store.format import Header


class MergedSource:
    """As another source, but for the numbers that an adapter changes: shards that have any are copied, and changed.

    The copies lie beside what the other source downloads, one at a time as shards are converted.
    """

    def __init__(self, base: Source, adapter: Adapter, progress: PullProgress) -> None:
        self._base, self._adapter, self._progress = base, adapter, progress
        self.origin, self.requested, self.shards = base.origin, base.requested, base.shards
        self.told = (*base.told, adapter.line())
        self.fingerprint = f"{base.fingerprint} with {adapter.files.fingerprint}"
        self._headers: Mapping[str, Header] = {}
        self._placed = Placed({}, {})

    def kept_files(self) -> list[str]:
        return self._base.kept_files()

    def read_file(self, name: str) -> bytes:
        return self._base.read_file(name)

    def shard_bytes(self, shard: str) -> int:
        return self._base.shard_bytes(shard)

    def fetch_bytes(self, shard: str, folder: Path) -> int:
        return 0 if self._copy(shard, folder).exists() else self._base.fetch_bytes(shard, folder)

    def copied_bytes(self, shard: str, folder: Path) -> int:
        there = self._copy(shard, folder).exists() or not self._changed(shard)
        return self._base.copied_bytes(shard, folder) + (0 if there else self.shard_bytes(shard))

    def headers(self) -> Mapping[str, Header]:
        """Raises UnsupportedModelError where the adapter changes what the checkpoint does not have."""
        if not self._headers:
            headers = self._base.headers()
            config = read_config(self._base)
            plan = family_of(config).tensors
            tensors = Tensors(self.shards, headers, plan, declared_by(config))
            self._placed, self._headers = placed(self._adapter, tensors, plan), headers
        return self._headers

    def open_shard(self, shard: str, folder: Path) -> Path:
        if not self._changed(shard):
            return self._base.open_shard(shard, folder)
        copy = self._copy(shard, folder)
        if not copy.exists():
            part = copy.with_suffix(".part")
            source = self._base.open_shard(shard, folder)
            self._progress.stage(f"merging the adapter into {shard}")
            with closing(Weights(self._adapter.files.weights(folder))) as weights, errors_named(part):
                shutil.copyfile(source, part)
                self._base.check_unchanged()
                merge(part, self.headers()[shard], self._placed, weights)
                os.replace(part, copy)
                sync_folder(folder)
        return copy

    def release_shard(self, shard: str, folder: Path, *, keep: bool) -> None:
        self._base.release_shard(shard, folder, keep=keep)
        with errors_named(folder):
            self._copy(shard, folder).unlink(missing_ok=True)

    def check_unchanged(self) -> None:
        self._base.check_unchanged()
        if f"{self._base.fingerprint} with {self._adapter.files.fingerprint}" != self.fingerprint:
            raise CheckpointError(f"{self._adapter.where} changed while it was merged; repeat the pull")

    def _changed(self, shard: str) -> bool:
        return any(name in self._placed for name in self.headers()[shard])

    def _copy(self, shard: str, folder: Path) -> Path:
        """Of this very checkpoint with this very adapter."""
        return folder / f"{hashlib.sha256(self.fingerprint.encode()).hexdigest()[:16]}-{shard}"
