"""A GGUF model of a Hub repository: downloaded as it is, and used so."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from moeinf.errors import CheckpointError, DiskSpaceError, StoreError
from moeinf.gguf.header import Gguf, GgufHeader, join_parts, parse_gguf, part_names, read_gguf
from moeinf.pull.events import PullProgress
from moeinf.pull.gguf.files import choose
from moeinf.pull.gguf.index import all_files, check_runs, discard, headers_of, make_index, write_model
from moeinf.pull.gguf.repack import repack_told
from moeinf.pull.gguf.sums import checksums_of
from moeinf.pull.gguf.towers import NONE, with_tower
from moeinf.pull.hub.repository import HubRepository
from moeinf.pull.steps import Headers
from moeinf.store.files import errors_named, make_folders, parse_json_object, publish, read_small, sync_folder
from moeinf.store.library import Library, StoredModel
from moeinf.store.manifest import ModelSource
from moeinf.store.naming.names import written
from moeinf.store.processes.partials import JOURNAL_FILE, PulledAs, partial_folder, pull_lock
from moeinf.text.quantities import shortage_text

_POSITIONS = ("rope_freqs.", "rope_factors_")  # tensors whose numbers a config is made of
_MARGIN = 64 << 20  # of disk, for the index and the file system's own records


@dataclass
class HubFile:
    """A pull of a model of one GGUF file, or of all parts of a split."""

    repository: HubRepository
    tag: str  # or a file's name; "" for the usual one
    name: str
    library: Library
    progress: PullProgress
    repacked: bool = False  # into files of the store's own; the download goes
    mmproj: str | None = None  # the repository's file of its tower, or "none"; None: the one beside it, if any is
    parts: Sequence[str] = field(init=False)  # their names in the repository
    tower: str = field(init=False)  # likewise; "" for text alone
    asked: PulledAs = field(init=False)
    _gguf: Gguf = field(init=False)  # the headers of all files, without what they only point to

    def __post_init__(self) -> None:
        """Reads the headers alone, by range. Raises CheckpointError and UnsupportedModelError before all else moves."""
        repository = self.repository
        first = choose(repository.names, self.tag, repository.repo)
        folder = first.rpartition("/")[0]
        header = self._header(first)
        plain = part_names(header, first.rpartition("/")[2], f"{repository.repo}: {first}")
        self.parts = [f"{folder}/{each}" if folder else each for each in plain]
        missing = [each for each in self.parts if each not in repository.names]
        if missing:
            raise CheckpointError(f"{repository.repo} lacks {missing[0]}, a part of {first}; take another of its files")
        headers = [header, *(self._header(each) for each in self.parts[1:])]
        joined = join_parts([self._placed(each) for each in zip(self.parts, headers, strict=True)])
        tensors = {name: tensor for name, tensor in joined.tensors.items() if not name.startswith(_POSITIONS)}
        joined = replace(joined, tensors=tensors)
        check_runs(joined)
        beside = self._beside(folder)
        self._gguf, self.tower = with_tower(joined, self._asked(), beside, self._tower, self.progress.note)
        origin = replace(repository.origin, revision=repository.requested, file=self.parts[0])
        self.asked = PulledAs(self.name, origin)
        self.library.check_origin(self.name, origin)

    @property
    def source(self) -> ModelSource:
        return replace(self.repository.origin, file=self.parts[0])

    @property
    def files(self) -> Sequence[str]:
        """The parts, and the tower's."""
        return [*self.parts, *([self.tower] if self.tower else [])]

    @property
    def folder(self) -> Path:
        """The work folder."""
        return partial_folder(self.library.home, written(self.asked.source))

    @property
    def fingerprint(self) -> str:
        """Of the model, as a store has it."""
        return self._fetched + (":repacked" if self.repacked else "")

    @property
    def _fetched(self) -> str:
        """Of the download, which either kind of pull goes on with."""
        return ":".join([self.repository.fingerprint, self.parts[0], *([self.tower] if self.tower else [])])

    @property
    def store_bytes(self) -> int:
        return sum(file.num_bytes for file in all_files(self._gguf))

    @property
    def needed_bytes(self) -> int:
        """Of free disk."""
        copied = self.store_bytes if self.repacked else 0
        return sum(self.missing_bytes(part) for part in self.files) + copied

    def headers(self) -> Headers:
        """What the headers say of the model. Raises CheckpointError, UnsupportedModelError."""
        return headers_of(self._gguf, self.source)

    def missing_bytes(self, part: str) -> int:
        return self.repository.missing_bytes(part, self.folder / "model")

    def made(self) -> Sequence[StoredModel]:
        return self.library.made_of(self.fingerprint)

    def run(self, *, force: bool) -> StoredModel:
        """Goes on where an interrupted pull of the same file stopped. What was fetched stays for the next attempt."""
        with pull_lock(self.folder, self.name, self.progress.note):
            for model in self.made():
                if model.name == self.name:
                    self.progress.stage(f"{self.name} is up to date")
                    return model
            made = self.made()
            if made:
                with self.library.lock():
                    return self.library.bind(self.name, made[0].id, revision=self.repository.requested)
            stored = self._fetch(force=force)
            shutil.rmtree(self.folder, ignore_errors=True)
            return stored

    def _fetch(self, *, force: bool) -> StoredModel:
        self._open_folder()
        model = self.folder / "model"
        needed, free = self.needed_bytes + _MARGIN, shutil.disk_usage(self.folder).free
        if not force and needed > free:
            raise DiskSpaceError(
                f"not enough disk space in {self.library.home}: {shortage_text(needed, free)}; free some, set "
                "MOEINF_HOME, or use --force"
            )
        missing = sum(self.missing_bytes(part) for part in self.files)
        self.progress.total("pulling", self.store_bytes, self.store_bytes - missing)
        for part in self.files:
            if self.missing_bytes(part) or not self._is_whole(part):
                self.repository.fetch(part, model)
        gguf = read_gguf(model / self.parts[0].rpartition("/")[2])
        if self.tower:
            gguf = replace(gguf, mmproj=read_gguf(model / self.tower.rpartition("/")[2]))
        with errors_named(model, CheckpointError):
            sha256 = [self.repository.sha256(part) for part in self.files]
            index = make_index(gguf, self.source, "", self.progress.note, sha256)
        made = model
        if self.repacked:
            made = self.folder / "repacked"
            discard(made)
            index, checksums = repack_told(index, model, made, self.name, self.progress)
        else:
            checksums = checksums_of(index.manifest, model, self.name, self.progress)
        record = {
            "fingerprint": self.fingerprint,
            "requested": self.repository.requested,
            "asked": json.dumps(self.asked.to_json()),
        }
        return write_model(self.library, made, self.name, index, record, checksums, self.repository.requested)

    def _is_whole(self, part: str) -> bool:
        """A part file of its full size still has to be compared with its hash, and renamed."""
        return (self.folder / "model" / part.rpartition("/")[2]).is_file()

    def _open_folder(self) -> None:
        """Takes over what an interrupted pull of this very state has left; anything else there goes."""
        with errors_named(self.folder):
            journal = json.dumps({**self.asked.to_json(), "fingerprint": self._fetched}).encode()
            path = self.folder / JOURNAL_FILE
            if self._fingerprint_of(path) != self._fetched:
                if self.folder.exists():
                    shutil.rmtree(self.folder)
                make_folders(self.folder / "model")
                publish(path, journal)
            make_folders(self.folder / "model")
            names = {part.rpartition("/")[2] for part in self.files}
            for entry in os.scandir(self.folder / "model"):
                if entry.name.removesuffix(".part") not in names:
                    os.unlink(entry.path)
            for part in self.files:
                self._take_over(part, self.folder / "model" / part.rpartition("/")[2])
            sync_folder(self.folder)

    def _fingerprint_of(self, journal: Path) -> object:
        """What an interrupted pull fetched; None where there was none, or its journal is damaged. Raises OSError."""
        try:
            return parse_json_object(read_small(journal), str(journal), StoreError).get("fingerprint")
        except (FileNotFoundError, StoreError):
            return None

    def _take_over(self, part: str, path: Path) -> None:
        """Gives a file that another model has of the repository a second name, as where a tower is added to a model."""
        sha256 = self.repository.sha256(part)
        if path.exists() or not sha256:
            return
        for model in self.library.list():
            with suppress(StoreError):
                in_place = model.manifest.in_place
                files = [file for file in in_place.files if file.sha256 == sha256] if in_place else []
                if files and not (in_place and in_place.folder):
                    path.hardlink_to(model.path / files[0].file)
                    return

    def _header(self, part: str) -> GgufHeader:
        repository = self.repository
        return parse_gguf(repository.reader(part), repository.num_bytes(part), f"{repository.repo}: {part}")

    def _placed(self, part: tuple[str, GgufHeader]) -> tuple[Path, GgufHeader]:
        """What errors call a file."""
        return Path(f"{self.repository.repo}: {part[0].rpartition('/')[2]}"), part[1]

    def _tower(self, name: str) -> Gguf:
        return join_parts([self._placed((name, self._header(name)))])

    def _asked(self) -> str | None:
        """Raises CheckpointError for a tower that is not in the repository."""
        if self.mmproj in (None, NONE) or self.mmproj in self.repository.names:
            return self.mmproj
        raise CheckpointError(f"{self.repository.repo} has no file {self.mmproj!r:.100}, which --mmproj names")

    def _beside(self, folder: str) -> list[str]:
        """The files in the model's folder, and those in none."""
        return [name for name in self.repository.names if name.rpartition("/")[0] in (folder, "")]
