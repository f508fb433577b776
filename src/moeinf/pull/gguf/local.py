"""A GGUF file of this machine, used where it lies."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from moeinf.errors import CheckpointError, DiskSpaceError, StoreError
from moeinf.gguf.header import Gguf, read_gguf
from moeinf.pull.checkpoint.seal import write_small_file
from moeinf.pull.gguf.hub_sums import checksums_of
from moeinf.pull.gguf.index import Index, all_files, check_runs, discard, headers_of, make_index, write_model
from moeinf.pull.gguf.known_files import forget_stale, free_name, given_template, known_model, refuse_mixture
from moeinf.pull.gguf.merged_tensors import MergedTensors, merged_told
from moeinf.pull.gguf.repack import repack_told
from moeinf.pull.gguf.towers import NONE, candidates, with_tower
from moeinf.pull.own_template import give_template
from moeinf.pull.steps import Headers, PlannedFile, PullPlan, free_bytes
from moeinf.pull.task import PullTask
from moeinf.store.files import errors_named
from moeinf.store.library import SOURCE_RECORD_FILE, StoredModel
from moeinf.store.manifest import ModelSource
from moeinf.store.placed.verify_placed import changed_file, is_unchecked
from moeinf.store.processes.partials import PulledAs, partial_folder, pull_lock
from moeinf.store.verify import verify
from moeinf.text.quantities import shortage_text


class FilePull:
    """Copies nothing but for --repack."""

    TAKES: Final = ("repack", "mmproj")

    def __init__(self, task: PullTask) -> None:
        task.require(*self.TAKES)
        self._task, self._path = task, Path(task.origin.source.location)
        self._adapter = task.opened_adapter()
        self._name = None if task.options.name is None and self._adapter is None else task.name
        self._library, self._progress, self._repacked = task.library, task.progress, task.repacked

    def plan(self) -> PullPlan:
        gguf = self._read()
        check_runs(gguf)
        first, parts = gguf.files[0].path, all_files(gguf)
        source = ModelSource("file", _printable(first))
        known = self._known()
        done = self._made([file.path for file in parts]) is not None
        free = free_name(first, source, self._library, repacked=self._repacked)
        name = self._name or (free if known is None else known.name)
        files = tuple(PlannedFile(file.path.name, file.num_bytes, 0) for file in parts)
        merged = 0 if self._adapter is None else MergedTensors(gguf, self._adapter).num_bytes
        copied = 0 if done else merged + sum(file.num_bytes for file in parts) * self._repacked
        return PullPlan(name, source, files, copied, copied, free_bytes(self._library.home), done, ())

    def headers(self) -> Headers:
        """What the header says of the model; nothing is kept. Raises CheckpointError, UnsupportedModelError."""
        self._progress.stage("reading the header")
        gguf = self._read()
        with errors_named(self._path, CheckpointError):
            return headers_of(gguf, ModelSource("file", _printable(gguf.files[0].path)))

    def run(self) -> StoredModel:
        """Returns the model of the file, which is made where there is none that still fits.

        A model with the checksums of all weights is made anew unless it has them, and its file the same times. Raises
        CheckpointError, UnsupportedModelError, StoreError, UsageError, DiskSpaceError; nothing is left behind then.
        """
        self._check_space()
        checked = self._task.checked
        known = self._known()
        if known is not None:
            self._heed_damage(known)
            if not checked and self._sees_by_it(known):
                return self._named(known)
        if known is None or checked:
            refuse_mixture(self._path, self._library)
        self._progress.stage("reading the header")
        gguf = self._read()
        by_fingerprint = checked or self._adapter is not None
        made = self._made([file.path for file in all_files(gguf)]) if by_fingerprint else None
        if made is not None:
            give_template(made, self._progress.note)
            self._progress.stage(f"{made.name} is up to date")
            return self._named(made)
        first = gguf.files[0].path
        source = ModelSource("file", _printable(first))
        name = self._name or free_name(first, source, self._library, repacked=self._repacked)
        folder = partial_folder(self._library.home, f"file:{first}")
        with pull_lock(folder, name, self._progress.note):
            try:
                return self._make(gguf, source, name, folder)
            finally:
                discard(folder)

    def _known(self) -> StoredModel | None:
        """The model that was made of the file alone, where that is what is wanted."""
        return None if self._repacked or self._adapter is not None else known_model(self._path, self._library)

    def _check_space(self) -> None:
        if (self._repacked or self._adapter is not None) and not self._task.options.force:
            plan = self.plan()
            if plan.needed_bytes > plan.free_bytes:
                shortage = shortage_text(plan.needed_bytes, plan.free_bytes)
                without = ", leave --repack out" if self._repacked else ""
                raise DiskSpaceError(
                    f"not enough disk space in {self._library.home}: {shortage}; free some{without}, or use --force"
                )

    def _read(self) -> Gguf:
        """The headers of the model and of its tower."""
        folder, note = self._path.parent, self._progress.note
        gguf = read_gguf(self._path)
        return with_tower(gguf, self._asked(), _beside(self._path), lambda name: read_gguf(folder / name), note)[0]

    def _asked(self) -> str | None:
        """The file of the tower that was named, now or when the model was made, if it is not beside the model."""
        mmproj = self._task.options.mmproj
        if mmproj is None and not self._repacked:
            known = known_model(self._path, self._library)
            tower = known.manifest.in_place.tower_path(known.path) if known and known.manifest.in_place else None
            return str(tower) if tower and tower.parent != self._path.parent else None
        return mmproj if mmproj is None or mmproj == NONE else os.path.realpath(os.path.expanduser(mmproj))

    def _sees_by_it(self, known: StoredModel) -> bool:
        """Whether a known model has the tower that lies beside the file, if any does."""
        in_place = known.manifest.in_place
        if (in_place and in_place.vision) or not candidates(_beside(self._path), self._path.name):
            return True
        return self._read().mmproj is None

    def _made(self, paths: Sequence[Path]) -> StoredModel | None:
        """A model made of these files as they are now; with the checksums of all weights, where it is to have them."""
        found = [model for model in self._library.made_of(self._fingerprint(paths)) if model.name]
        return next((each for each in found if not (self._task.checked and is_unchecked(each))), None)

    def _fingerprint(self, paths: Sequence[Path]) -> str:
        """Of sizes, times and inodes, as reading the weights would take as long as checking them."""
        with errors_named(self._path, CheckpointError):
            found = [(str(path), path.stat()) for path in paths]
        state = [(path, info.st_size, info.st_mtime_ns, info.st_ino) for path, info in found]
        merged = f" with {self._adapter.fingerprint}" if self._adapter else ""
        repacked = ":repacked" if self._repacked else ""
        return hashlib.sha256(json.dumps(state).encode()).hexdigest() + merged + repacked

    def _record(self, name: str, source: ModelSource, paths: Sequence[Path]) -> dict[str, str]:
        asked = json.dumps(PulledAs(name, source, adapter=self._task.origin.adapter).to_json())
        found = {"fingerprint": self._fingerprint(paths), "asked": asked, "requested": ""}
        return found | {"template": self._task.origin.template or given_template(self._path, self._library)}

    def _heed_damage(self, known: StoredModel) -> None:
        """Where `verify` found damage it took the record away: then the file has to be sound before it is used again.

        Raises StoreError.
        """
        if (known.path / SOURCE_RECORD_FILE).is_file():
            return
        in_place = known.manifest.in_place
        assert in_place is not None
        self._progress.note(f"damage was found in {known.name} before; reading all of it again")
        self._progress.total("verifying", in_place.num_bytes, 0)
        self._progress.start("verifying", known.name, in_place.num_bytes, 0)
        faults = verify(known, self._progress.advance)
        self._progress.finish()
        if faults:
            raise StoreError(
                f"{known.name}: {faults[0]}; fetch the file again (`moeinf rm {known.name}` forgets what it was)"
            )
        record = self._record(known.name, known.manifest.source, in_place.paths(known.path))
        write_small_file(known.path / SOURCE_RECORD_FILE, json.dumps(record).encode())

    def _make(self, gguf: Gguf, source: ModelSource, name: str, folder: Path) -> StoredModel:
        first = gguf.files[0].path
        record = self._record(name, source, [file.path for file in all_files(gguf)])
        model, told = folder / "model", list[str]()
        read = folder if self._repacked else model  # where the file of merged tensors is read
        if self._adapter is not None:
            gguf, told = merged_told(gguf, self._adapter, read, folder, name, self._progress)
        with errors_named(first, CheckpointError):
            index = make_index(gguf, source, _printable(first.parent), self._progress.note, told=told)
        index = index.with_template(record["template"])
        checksums = b""
        if self._repacked:
            index, checksums = repack_told(index, read, model, name, self._progress)
        elif self._task.checked:
            checksums = checksums_of(index.manifest, read, name, self._progress)
        with errors_named(first, CheckpointError):
            _require_unchanged(index, read)
        forget_stale(name, source, self._library)
        return write_model(self._library, model, name, index, record, checksums)

    def _named(self, known: StoredModel) -> StoredModel:
        """The known model, under the name that was asked for."""
        if self._name is None or self._name == known.name:
            return known
        self._library.check_origin(self._name, known.manifest.source)
        with self._library.lock():
            return self._library.bind(self._name, known.id)


def _printable(path: Path) -> str:
    """A path as a manifest holds it. Raises CheckpointError for one that no text can hold."""
    text = str(path)
    if not text.isprintable():
        raise CheckpointError(f"{text!a} has characters that cannot be printed; rename it")
    return text


def _beside(path: Path) -> list[str]:
    """The names in a file's folder, its own among them."""
    with errors_named(path.parent, CheckpointError):
        return os.listdir(path.parent)


def _require_unchanged(index: Index, folder: Path) -> None:
    if index.manifest.in_place is None:
        return
    fault = changed_file(index.manifest.in_place, folder, samples=False)
    if fault:
        raise CheckpointError(f"{fault}: it changed while it was read; repeat the command")
