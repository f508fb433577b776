"""A GGUF model of a Hub repository: downloaded as it is, and used so."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from moeinf.errors import CheckpointError, DiskSpaceError, StoreError, UsageError
from moeinf.gguf.header import read_gguf
from moeinf.pull.gguf.hub_files import HubFiles
from moeinf.pull.gguf.hub_sums import checksums_of
from moeinf.pull.gguf.index import discard, headers_of, make_index, write_model
from moeinf.pull.gguf.merged_tensors import MergedTensors, merged_told
from moeinf.pull.gguf.repack import repack_told
from moeinf.pull.hub.repository import HubRepository
from moeinf.pull.own_template import give_template
from moeinf.pull.steps import Headers, PlannedFile, PullPlan, free_bytes
from moeinf.pull.task import PullTask
from moeinf.store.files import errors_named, make_folders, parse_json_object, publish, read_small, sync_folder
from moeinf.store.library import StoredModel
from moeinf.store.naming.names import written
from moeinf.store.processes.partials import JOURNAL_FILE, PulledAs, partial_folder, pull_lock
from moeinf.text.quantities import shortage_text

_MARGIN = 64 << 20  # of disk, for the index and the file system's own records


class HubFilePull:
    """Keeps the download, but for --repack; an interrupted one goes on where it stopped."""

    TAKES: Final = ("repack", "mmproj")

    def __init__(self, task: PullTask, repository: HubRepository) -> None:
        """Reads the headers alone. Raises CheckpointError and UnsupportedModelError before all else moves."""
        task.require(*self.TAKES)
        self._name, self._library, self._progress, self._options = task.name, task.library, task.progress, task.options
        self._repository, self._repacked = repository, task.repacked
        self._files = HubFiles(repository, task.origin.source.file, task.options.mmproj, task.progress.note)
        asked = replace(repository.origin, revision=repository.requested, file=self._files.parts[0])
        self._asked = PulledAs(task.name, asked, adapter=task.origin.adapter)
        self._adapter = task.opened_adapter()
        self._merged_bytes = 0 if self._adapter is None else MergedTensors(self._files.gguf, self._adapter).num_bytes
        self._folder = partial_folder(task.library.home, written(asked))
        self._library.check_origin(task.name, asked)

    def plan(self) -> PullPlan:
        repository, library = self._repository, self._library
        files = tuple(PlannedFile(part, repository.num_bytes(part), self._missing(part)) for part in self._files.all)
        done, store_bytes = bool(self._made()), self._files.num_bytes + self._merged_bytes
        needed, free = 0 if done else self._needed_bytes, free_bytes(library.home)
        return PullPlan(self._name, self._files.source, files, store_bytes, needed, free, done, ())

    def headers(self) -> Headers:
        """What the headers say of the model. Raises CheckpointError, UnsupportedModelError."""
        return headers_of(self._files.gguf, self._files.source)

    def run(self) -> StoredModel:
        """Goes on where an interrupted pull of the same file stopped. What was fetched stays for the next attempt."""
        if self._options.keep_source and self._repacked:
            raise UsageError("--keep-source: leave --repack out, then the download is used as it is and stays")
        with pull_lock(self._folder, self._name, self._progress.note):
            made = self._made()
            for model in made:
                if model.name == self._name:
                    give_template(model, self._progress.note)
                    self._progress.stage(f"{self._name} is up to date")
                    return model
            if made:
                with self._library.lock():
                    return self._library.bind(self._name, made[0].id, revision=self._repository.requested)
            stored = self._fetch()
            shutil.rmtree(self._folder, ignore_errors=True)
            return stored

    @property
    def _fingerprint(self) -> str:
        """Of the model, as a store has it."""
        merged = f" with {self._adapter.fingerprint}" if self._adapter else ""
        return self._files.fingerprint + merged + (":repacked" if self._repacked else "")

    @property
    def _needed_bytes(self) -> int:
        """Of free disk."""
        copied = self._files.num_bytes if self._repacked else 0
        return sum(self._missing(part) for part in self._files.all) + copied + self._merged_bytes

    def _missing(self, part: str) -> int:
        return self._repository.missing_bytes(part, self._folder / "model")

    def _made(self) -> Sequence[StoredModel]:
        return self._library.made_of(self._fingerprint)

    def _fetch(self) -> StoredModel:
        self._open_folder()
        model = self._folder / "model"
        needed, free = self._needed_bytes + _MARGIN, shutil.disk_usage(self._folder).free
        if not self._options.force and needed > free:
            raise DiskSpaceError(
                f"not enough disk space in {self._library.home}: {shortage_text(needed, free)}; free some, set "
                "MOEINF_HOME, or use --force"
            )
        missing = sum(self._missing(part) for part in self._files.all)
        self._progress.total("pulling", self._files.num_bytes, self._files.num_bytes - missing)
        for part in self._files.all:
            if self._missing(part) or not self._is_whole(part):
                self._repository.fetch(part, model)
        gguf = read_gguf(model / self._files.parts[0].rpartition("/")[2])
        if self._files.tower:
            gguf = replace(gguf, mmproj=read_gguf(model / self._files.tower.rpartition("/")[2]))
        told = list[str]()
        if self._adapter is not None:
            gguf, told = merged_told(gguf, self._adapter, model, self._folder, self._name, self._progress)
        with errors_named(model, CheckpointError):
            sha256 = {part.rpartition("/")[2]: self._repository.sha256(part) for part in self._files.all}
            index = make_index(gguf, self._files.source, "", self._progress.note, sha256, told=told)
        made = model
        if self._repacked:
            made = self._folder / "repacked"
            discard(made)
            index, checksums = repack_told(index, model, made, self._name, self._progress)
        else:
            checksums = checksums_of(index.manifest, model, self._name, self._progress)
        record = {
            "fingerprint": self._fingerprint,
            "requested": self._repository.requested,
            "asked": json.dumps(self._asked.to_json()),
        }
        return write_model(self._library, made, self._name, index, record, checksums, self._repository.requested)

    def _is_whole(self, part: str) -> bool:
        """A part file of its full size still has to be compared with its hash, and renamed."""
        return (self._folder / "model" / part.rpartition("/")[2]).is_file()

    def _open_folder(self) -> None:
        """Takes over what an interrupted pull of this very state has left; anything else there goes."""
        with errors_named(self._folder):
            journal = json.dumps({**self._asked.to_json(), "fingerprint": self._files.fingerprint}).encode()
            path = self._folder / JOURNAL_FILE
            if self._fingerprint_of(path) != self._files.fingerprint:
                if self._folder.exists():
                    shutil.rmtree(self._folder)
                make_folders(self._folder / "model")
                publish(path, journal)
            make_folders(self._folder / "model")
            names = {part.rpartition("/")[2] for part in self._files.all}
            for entry in os.scandir(self._folder / "model"):
                if entry.name.removesuffix(".part") not in names:
                    os.unlink(entry.path)
            for part in self._files.all:
                self._take_over(part, self._folder / "model" / part.rpartition("/")[2])
            sync_folder(self._folder)

    def _fingerprint_of(self, journal: Path) -> object:
        """What an interrupted pull fetched; None where there was none, or its journal is damaged. Raises OSError."""
        try:
            return parse_json_object(read_small(journal), str(journal), StoreError).get("fingerprint")
        except (FileNotFoundError, StoreError):
            return None

    def _take_over(self, part: str, path: Path) -> None:
        """Gives a file that another model has of the repository a second name, as where a tower is added to a model."""
        sha256 = self._repository.sha256(part)
        if path.exists() or not sha256:
            return
        for model in self._library.list():
            with suppress(StoreError):
                in_place = model.manifest.in_place
                files = [file for file in in_place.files if file.sha256 == sha256] if in_place else []
                if files and not (in_place and in_place.folder):
                    path.hardlink_to(model.path / files[0].file)
                    return
