"""A GGUF file of this machine, used where it lies."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from moeinf.errors import CheckpointError, StoreError
from moeinf.gguf.header import Gguf, read_gguf
from moeinf.pull.checkpoint.seal import write_small_file
from moeinf.pull.events import PullProgress
from moeinf.pull.gguf.index import Index, all_files, check_runs, discard, headers_of, make_index, write_model
from moeinf.pull.gguf.repack import repack_told
from moeinf.pull.gguf.sums import checksums_of
from moeinf.pull.gguf.towers import NONE, candidates, with_tower
from moeinf.pull.steps import Headers
from moeinf.store.files import errors_named
from moeinf.store.library import SOURCE_RECORD_FILE, Library, StoredModel
from moeinf.store.manifest import ModelSource
from moeinf.store.naming.names import name_from
from moeinf.store.placed.verify import changed_file, file_faults, is_unchecked
from moeinf.store.processes.partials import PulledAs, partial_folder, pull_lock
from moeinf.store.sums.checksums import CHECKSUMS_FILE
from moeinf.store.verify import verify

_SPLIT = re.compile(r"-\d{5}-of-\d{5}$")


def file_model_name(path: Path) -> str:
    """The name that a file's model gets by default."""
    return name_from(_SPLIT.sub("", path.name[: -len(".gguf")] if path.name.lower().endswith(".gguf") else path.name))


def known_model(path: Path, library: Library) -> StoredModel | None:
    """The model that was made of this file, or of another part of its split, if it still is what it was then."""
    for model in library.list():
        with suppress(StoreError):
            in_place, source = model.manifest.in_place, model.manifest.source
            if source.kind != "file" or in_place is None or path not in in_place.paths(model.path):
                continue
            changed = changed_file(in_place, model.path, samples=is_unchecked(model))
            if path != in_place.tower_path(model.path) and not changed:
                return model
    return None


def refuse_mixture(path: Path, library: Library) -> None:
    """Raises CheckpointError where some parts of a split are what they were when a model was made, and others are not.

    Parts of models of one architecture have the same headers, so nothing in a file tells that it is another model's.
    """
    for model in library.list():
        with suppress(StoreError):
            in_place, source = model.manifest.in_place, model.manifest.source
            if source.kind != "file" or in_place is None or path not in in_place.paths(model.path):
                continue
            tower = in_place.tower_path(model.path)
            parts = zip(in_place.paths(model.path), file_faults(in_place, model.path, samples=True), strict=True)
            faults = [fault for part, fault in parts if part != tower and part.exists()]
            changed = [fault for fault in faults if fault]
            if changed and len(changed) < len(faults):
                raise CheckpointError(
                    f"{changed[0]}, and other parts are what they were when {model.name} was made: it is "
                    "another model's part, or damaged; put it back, or take all as they are after "
                    f"`moeinf rm {model.name}`"
                )


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A pull of a file. It copies nothing."""

    path: Path  # absolute
    name: str | None  # that was asked for
    library: Library
    progress: PullProgress
    repacked: bool = False  # into files of the store's own
    mmproj: str | None = None  # the file of its tower, or "none"; None: the one beside it, if there is any

    def plan(self) -> tuple[str, ModelSource, list[tuple[str, int]], bool]:
        """The name, the source, the files with their sizes, and whether there is nothing left to do."""
        gguf = self._read()
        check_runs(gguf)
        first = gguf.files[0].path
        source = ModelSource("file", _printable(first))
        known = None if self.repacked else known_model(self.path, self.library)
        done = self._made([file.path for file in all_files(gguf)]) is not None
        name = known.name if known is not None and self.name is None else self._free_name(first, source)
        return name, source, [(file.path.name, file.num_bytes) for file in all_files(gguf)], done

    def headers(self) -> Headers:
        """What the header says of the model; nothing is kept. Raises CheckpointError, UnsupportedModelError."""
        self.progress.stage("reading the header")
        gguf = self._read()
        with errors_named(self.path, CheckpointError):
            return headers_of(gguf, ModelSource("file", _printable(gguf.files[0].path)))

    def run(self, *, checked: bool) -> StoredModel:
        """Returns the model of the file, which is made where there is none that still fits.

        checked: with the checksums of all weights, for which the whole file is read, unless it was and has the same
        times. Raises CheckpointError, UnsupportedModelError, StoreError, UsageError; nothing is left behind then.
        """
        known = None if self.repacked else known_model(self.path, self.library)
        if known is not None:
            self._heed_damage(known)
            if not checked and self._sees_by_it(known):
                return self._named(known)
        if known is None or checked:
            refuse_mixture(self.path, self.library)
        self.progress.stage("reading the header")
        gguf = self._read()
        made = self._made([file.path for file in all_files(gguf)]) if checked else None
        if made is not None:
            self.progress.stage(f"{made.name} is up to date")
            return self._named(made)
        first = gguf.files[0].path
        source = ModelSource("file", _printable(first))
        name = self._free_name(first, source)
        folder = partial_folder(self.library.home, f"file:{first}")
        with pull_lock(folder, name, self.progress.note):
            try:
                return self._make(gguf, source, name, folder, checked=checked)
            finally:
                discard(folder)

    def _read(self) -> Gguf:
        """The headers of the model and of its tower."""
        folder, note = self.path.parent, self.progress.note
        gguf = read_gguf(self.path)
        return with_tower(gguf, self._asked(), self._beside(), lambda name: read_gguf(folder / name), note)[0]

    def _asked(self) -> str | None:
        """The file of the tower that was named, now or when the model was made, if it is not beside the model."""
        if self.mmproj is None and not self.repacked:
            known = known_model(self.path, self.library)
            tower = known.manifest.in_place.tower_path(known.path) if known and known.manifest.in_place else None
            return str(tower) if tower and tower.parent != self.path.parent else None
        return self.mmproj if self.mmproj in (None, NONE) else os.path.realpath(os.path.expanduser(self.mmproj))

    def _beside(self) -> list[str]:
        with errors_named(self.path.parent, CheckpointError):
            return os.listdir(self.path.parent)

    def _sees_by_it(self, known: StoredModel) -> bool:
        """Whether a known model has the tower that lies beside the file, if any does."""
        in_place = known.manifest.in_place
        if (in_place and in_place.vision) or not candidates(self._beside(), self.path.name):
            return True
        return self._read().mmproj is None

    def _made(self, paths: Sequence[Path]) -> StoredModel | None:
        """A model with the checksums of all weights, made of these files as they are now."""
        found = self.library.made_of(self._fingerprint(paths))
        return next((model for model in found if model.name and (model.path / CHECKSUMS_FILE).is_file()), None)

    def _fingerprint(self, paths: Sequence[Path]) -> str:
        """Of sizes, times and inodes, as reading the weights would take as long as checking them."""
        with errors_named(self.path, CheckpointError):
            found = [(str(path), path.stat()) for path in paths]
        state = [(path, info.st_size, info.st_mtime_ns, info.st_ino) for path, info in found]
        return hashlib.sha256(json.dumps(state).encode()).hexdigest() + (":repacked" if self.repacked else "")

    def _record(self, name: str, source: ModelSource, paths: Sequence[Path]) -> dict[str, str]:
        asked = json.dumps(PulledAs(name, source).to_json())
        return {"fingerprint": self._fingerprint(paths), "asked": asked, "requested": ""}

    def _heed_damage(self, known: StoredModel) -> None:
        """Where `verify` found damage it took the record away: then the file has to be sound before it is used again.

        Raises StoreError.
        """
        if (known.path / SOURCE_RECORD_FILE).is_file():
            return
        in_place = known.manifest.in_place
        assert in_place is not None
        self.progress.note(f"damage was found in {known.name} before; reading all of it again")
        self.progress.total("verifying", in_place.num_bytes, 0)
        self.progress.start("verifying", known.name, in_place.num_bytes, 0)
        faults = verify(known, self.progress.advance)
        self.progress.finish()
        if faults:
            raise StoreError(
                f"{known.name}: {faults[0]}; fetch the file again (`moeinf rm {known.name}` forgets what it was)"
            )
        record = self._record(known.name, known.manifest.source, in_place.paths(known.path))
        write_small_file(known.path / SOURCE_RECORD_FILE, json.dumps(record).encode())

    def _make(self, gguf: Gguf, source: ModelSource, name: str, folder: Path, *, checked: bool) -> StoredModel:
        first = gguf.files[0].path
        record = self._record(name, source, [file.path for file in all_files(gguf)])
        with errors_named(first, CheckpointError):
            index = make_index(gguf, source, _printable(first.parent), self.progress.note)
        checksums = b""
        if self.repacked:
            index, checksums = repack_told(index, folder, folder / "model", name, self.progress)
        elif checked:
            checksums = checksums_of(index.manifest, folder, name, self.progress)
        with errors_named(first, CheckpointError):
            self._require_unchanged(index, folder)
        self._forget_stale(name, source)
        return write_model(self.library, folder / "model", name, index, record, checksums)

    def _require_unchanged(self, index: Index, folder: Path) -> None:
        if index.manifest.in_place is None:
            return
        fault = changed_file(index.manifest.in_place, folder, samples=False)
        if fault:
            raise CheckpointError(f"{fault}: it changed while it was read; repeat the command")

    def _named(self, known: StoredModel) -> StoredModel:
        """The known model, under the name that was asked for."""
        if self.name is None or self.name == known.name:
            return known
        self.library.check_origin(self.name, known.manifest.source)
        with self.library.lock():
            return self.library.bind(self.name, known.id)

    def _free_name(self, first: Path, source: ModelSource) -> str:
        """The name that was asked for, else one that no other model has."""
        if self.name is not None:
            return self.name
        name = f"{file_model_name(first)}:{'repacked' if self.repacked else 'latest'}"
        held = self._holder(name)
        if held is None or held.manifest.source.same_origin(source) or _is_stale(held):
            return name
        word, _, tag = name.partition(":")
        return f"{word[:73]}-{hashlib.sha256(str(first).encode()).hexdigest()[:6]}:{tag}"

    def _holder(self, name: str) -> StoredModel | None:
        found = [model for model in self.library.list() if model.name == name]
        with suppress(StoreError):
            _ = [model.manifest for model in found]
            return found[0] if found else None
        return None

    def _forget_stale(self, name: str, source: ModelSource) -> None:
        """A file that has moved leaves an index behind, whose name is free again."""
        held = self._holder(name)
        if held is not None and not held.manifest.source.same_origin(source) and _is_stale(held):
            self.library.remove(name)


def _is_stale(model: StoredModel) -> bool:
    source, in_place = model.manifest.source, model.manifest.in_place
    if source.kind != "file" or in_place is None:
        return False
    return changed_file(in_place, model.path, samples=is_unchecked(model)) != ""


def _printable(path: Path) -> str:
    """A path as a manifest holds it. Raises CheckpointError for one that no text can hold."""
    text = str(path)
    if not text.isprintable():
        raise CheckpointError(f"{text!a} has characters that cannot be printed; rename it")
    return text
