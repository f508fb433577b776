"""A checkpoint with an adapter merged into its weights, as a source of a pull."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from moeinf.errors import CheckpointError
from moeinf.models.family import family_of
from moeinf.pull.checkpoint.tensors import Tensors
from moeinf.pull.coded.declared import declared_by
from moeinf.pull.events import PullProgress
from moeinf.pull.lora.adapter_origin import OpenAdapter, adapter_for
from moeinf.pull.lora.decoded import (
    DecodedMatrix,
    decoded_matrices,
    in_their_place,
    line_of,
    read_beside,
    with_companions,
    write_decoded,
)
from moeinf.pull.lora.expert_layouts import with_own_layouts
from moeinf.pull.lora.merging import Weights, merge
from moeinf.pull.lora.placed import Placed, placed
from moeinf.pull.source import Shards, Source, read_config
from moeinf.store.files import errors_named, sync_folder
from moeinf.store.format import Header, raw_header


class MergedSource:
    """As another source, but for the numbers that an adapter changes: shards that have any are copied, and changed.

    Coded matrices that it changes are plain tensors in the copies, of the type that programs compute with. The copies
    lie beside what the other source downloads, one at a time as shards are converted.
    """

    def __init__(self, base: Source, opened: OpenAdapter, progress: PullProgress) -> None:
        """Raises as `adapter_for`."""
        self._base, self._progress = base, progress
        self._adapter = adapter_for(opened, read_config(base), {})
        self.origin, self.requested = base.origin, base.requested
        self.fingerprint = f"{base.fingerprint} with {opened.fingerprint}"
        self._before: Mapping[str, Header] = {}
        self._headers: Mapping[str, Header] = {}
        self._shards = base.shards
        self._placed = Placed({}, {})
        self._decoded: Sequence[DecodedMatrix] = ()

    @property
    def shards(self) -> Shards:
        return self._shards

    @property
    def told(self) -> tuple[str, ...]:
        line = line_of(self._decoded)
        return (*self._base.told, self._adapter.line(), *([line] if line else []))

    def kept_files(self) -> list[str]:
        return self._base.kept_files()

    def read_file(self, name: str) -> bytes:
        return self._base.read_file(name)

    def chat_code(self) -> str:
        return self._base.chat_code()

    def shard_bytes(self, shard: str) -> int:
        return self._base.shard_bytes(shard)

    def fetch_bytes(self, shard: str, folder: Path) -> int:
        return 0 if self._copy(shard, folder).exists() else self._base.fetch_bytes(shard, folder)

    def copied_bytes(self, shard: str, folder: Path) -> int:
        copied = self._base.copied_bytes(shard, folder)
        if self._copy(shard, folder).exists() or not self._changed(shard):
            return copied
        beside = sum(self._base.fetch_bytes(other, folder) for other in read_beside(shard, self._decoded))
        header = self.headers()[shard]
        same = header == self._before[shard]
        return copied + beside + (self.shard_bytes(shard) if same else _file_bytes(header))

    def headers(self) -> Mapping[str, Header]:
        """Raises UnsupportedModelError where the adapter changes what the checkpoint does not have."""
        if not self._headers:
            self._before, shards = self._base.headers(), self._base.shards
            config = read_config(self._base)
            plan, declared = with_own_layouts(family_of(config).tensors), declared_by(config)
            found = decoded_matrices(Tensors(shards, self._before, plan, declared), plan)
            every = Tensors(*in_their_place(shards, self._before, found.values()), plan, declared)
            self._placed = placed(self._adapter, every, plan)
            self._decoded = with_companions({*self._placed.updates, *self._placed.replaced}, found)
            self._shards, self._headers = in_their_place(shards, self._before, self._decoded)
        return self._headers

    def open_shard(self, shard: str, folder: Path) -> Path:
        if not self._changed(shard):
            return self._base.open_shard(shard, folder)
        copy = self._copy(shard, folder)
        if not copy.exists():
            part = copy.with_suffix(".part")
            paths = {each: self._base.open_shard(each, folder) for each in (shard, *read_beside(shard, self._decoded))}
            self._progress.stage(f"merging the adapter into {shard}")
            with closing(Weights(self._adapter.files.weights(folder))) as weights, errors_named(part):
                before, after = self._before[shard], self.headers()[shard]
                if after == before:
                    shutil.copyfile(paths[shard], part)
                else:
                    write_decoded(part, shard, before, after, self._decoded, paths)
                self._base.check_unchanged()
                merge(part, after, self._placed, weights)
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
        header = self.headers()[shard]
        return header != self._before[shard] or any(name in self._placed for name in header)

    def _copy(self, shard: str, folder: Path) -> Path:
        """Of this very checkpoint with this very adapter."""
        return folder / f"{hashlib.sha256(self.fingerprint.encode()).hexdigest()[:16]}-{shard}"


def _file_bytes(header: Header) -> int:
    return len(raw_header(header)[0]) + sum(entry.num_bytes for entry in header.values())
