"""The models that a store holds: found by name or source, listed, named and removed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

from moeinf.errors import MALFORMED, StoreError, UsageError
from moeinf.store.files import errors_named, is_there, make_folders, read_small
from moeinf.store.format import DENSE_FILE
from moeinf.store.manifest import MANIFEST_FILE, Manifest, ModelSource, load
from moeinf.store.model_folders import ModelFolders
from moeinf.store.naming.aliases import aliases
from moeinf.store.naming.catalogue import sources_of
from moeinf.store.naming.lookup import not_found, stored_name
from moeinf.store.naming.name_files import Held, NameFiles, remedy
from moeinf.store.naming.names import (
    LEAST_COMMIT,
    MTP,
    address_source,
    asked_revision,
    default_name,
    is_file,
    mtp_name,
    parse_name,
    repository_source,
    written,
)
from moeinf.store.processes.leftovers import find_leftovers, free_locks
from moeinf.store.processes.locks import locked
from moeinf.store.processes.partials import PartialPull, find_partials, parse_source_record
from moeinf.store.spread.copy_list import CopyList

# Beside the manifest: the state of the source that the model was made of. `verify` deletes it when it finds damage.
SOURCE_RECORD_FILE = "receipt.json"


@dataclass(frozen=True)
class StoredModel:
    """A published model. Only `manifest` and what is made of it open the manifest, and raise StoreError."""

    name: str  # "demo:latest"
    id: str  # hex digits, the name of its folder
    path: Path
    preset_text: str = ""  # what goes with this name alone, as engine/stored/preset.py reads it
    asked_revision: str | None = None  # under this name; None where the source record tells, as in older stores

    @property
    def home(self) -> Path:
        """The folder of the store that has it."""
        return self.path.parents[1]

    @property
    def own_id(self) -> str:
        """The id of what the name stands for: another one than the weights' where a preset goes with them."""
        if not self.preset_text:
            return self.id
        return hashlib.sha256(f"{self.id}\n{self.preset_text}".encode()).hexdigest()

    @property
    def revision(self) -> str:
        """The branch, tag or commit of the Hub that was asked for; "" for the default branch, and other sources."""
        if self.asked_revision is not None:
            return self.asked_revision
        return asked_revision(self.source_record().get("requested", ""))

    def is_later(self, source: ModelSource) -> bool:
        """Whether this may be a state of the source at the revision that it has. Raises StoreError."""
        return self.manifest.source.same_origin(source) and self.revision == source.revision

    @cached_property
    def manifest(self) -> Manifest:
        return load(self.path / MANIFEST_FILE, self.id)

    @property
    def size_bytes(self) -> int:
        """Bytes on disk, also of a damaged model; those of files that it uses in place counted."""
        outside = 0
        with suppress(StoreError):
            in_place = self.manifest.in_place
            outside = in_place.outside_bytes if in_place is not None else 0
        with errors_named(self.path):
            own = sum(entry.stat().st_size for entry in os.scandir(self.path) if entry.is_file(follow_symlinks=False))
        return own + outside

    @property
    def modified(self) -> datetime:
        """The time at which it was published, in UTC."""
        with errors_named(self.path):
            return datetime.fromtimestamp((self.path / MANIFEST_FILE).stat().st_mtime, timezone.utc)

    @property
    def remedy(self) -> str:
        """The advice for files that are no longer what they were when the model was published."""
        with suppress(StoreError):
            in_place = self.manifest.in_place
            if in_place is not None and in_place.folder:
                return f"check it with `moeinf verify {self.name}`, and fetch the file again if it is damaged"
        return f"check it with `moeinf verify {self.name}`, then `moeinf pull` it again"

    @property
    def dense_path(self) -> Path:
        return self.path / DENSE_FILE

    @property
    def shard_paths(self) -> list[Path]:
        """The files of the experts: one for each MoE layer, or those in place."""
        in_place = self.manifest.in_place
        if in_place is not None:
            return in_place.paths(self.path)
        return [self.path / shard.file for shard in self.manifest.shards]

    @property
    def shard_sizes(self) -> list[int]:
        in_place = self.manifest.in_place
        return [each.num_bytes for each in (in_place.files if in_place is not None else self.manifest.shards)]

    @property
    def dense_bytes(self) -> int:
        """Bytes on disk of all weights but experts."""
        in_place = self.manifest.in_place
        if in_place is not None:
            return in_place.dense_bytes
        with errors_named(self.dense_path):
            return self.dense_path.stat().st_size

    def source_record(self) -> dict[str, str]:
        """What `pull` recorded of the source; empty where the record is missing or damaged."""
        try:
            value = json.loads(read_small(self.path / SOURCE_RECORD_FILE, 1 << 16))
        except (OSError, *MALFORMED):
            return {}
        return value if isinstance(value, dict) and all(isinstance(v, str) for v in value.values()) else {}


@dataclass(frozen=True, slots=True)
class Pruned:
    """What `prune` has deleted."""

    num_pulls: int  # interrupted
    freed_bytes: int
    left_bytes: int  # of them, of processes that were killed
    faults: tuple[str, ...]  # a line for each thing that could not be deleted


Partials = list[PartialPull]  # inside Library, `list` is the method
Lines = list[str]


class _HeldModels:
    """The models that the names of a store hold, and which of them is meant. Holds no state."""

    def __init__(self, home: Path) -> None:
        self._home, self.names, self.folders = home, NameFiles(home / "names"), ModelFolders(home)

    def all(self) -> Iterator[StoredModel | StoreError]:
        """Yields the model of every name, or what is wrong with it."""
        refused: dict[Path, StoreError] = {}
        names = self.names.all(refused)
        yield from refused.values()
        for full in names:
            try:
                model = self.of(full)
                if model is None and (gone := self.names.read(full).identifier):  # else the name has gone meanwhile
                    raise StoreError(f"the model of {full} is gone; {self._remedy_of_gone(full, gone)}")
                if model is not None:
                    _ = model.modified  # the disk may still refuse to tell
                    yield model
            except StoreError as error:
                yield error

    def of(self, full: str) -> StoredModel | None:
        """Returns a name's model; None where either is missing. Raises StoreError for a damaged name."""
        held = self.names.read(full)
        folder = self.folders.path(held.identifier)
        sound = held.identifier and is_there(folder / MANIFEST_FILE)
        return StoredModel(full, held.identifier, folder, held.preset_text, held.revision) if sound else None

    def meant(self, reference: str) -> str | None:
        """The full name under which a model is stored, also where it is damaged, that a reference means."""
        return stored_name(reference, self.names, lambda: aliases(self._home), self._is_other)

    def _is_other(self, full: str, source: ModelSource) -> bool:
        """Whether the model of a name is of no form of what this source is the checkpoint of, or is damaged."""
        with suppress(StoreError):
            model = self.of(full)
            return model is not None and not any(map(model.manifest.source.same_origin, sources_of(source)))
        return True

    def _remedy_of_gone(self, full: str, identifier: str) -> str:
        if self.folders.is_away(identifier):
            return f"mount the disk that {self.folders.path(identifier)} is on, or pull the model again"
        return remedy(full)


class Library:
    """All access to names/ and models/ of one store. Holds no state: every call reads the disk."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._held = _HeldModels(home)
        self._names, self._folders, self._copies = self._held.names, self._held.folders, CopyList(home)

    def list(self) -> list[StoredModel]:
        """Returns the published models, newest first. One with two names appears twice, a damaged one not at all."""
        found = [found for found in self._held.all() if not isinstance(found, StoreError)]
        return sorted(found, key=lambda model: (model.modified, model.name), reverse=True)

    def faults(self) -> Lines:
        """Returns a line with the remedy for each name that `list` leaves out."""
        return [str(found) for found in self._held.all() if isinstance(found, StoreError)]

    def find(self, reference: str) -> StoredModel:
        """Finds the model called `name` or `name:tag`, or made of `org/repo` or `org/repo@revision`.

        A name may have other capitals, and lack its tag, where one model alone can be meant. Raises
        ModelNotFoundError with close matches and the remedy.
        """
        model = self.named(reference) or _made_of_source(self.list(), reference)
        if model is None:
            raise not_found(reference, self._names.all({}))
        return model

    def named(self, reference: str) -> StoredModel | None:
        """The model whose name is meant; None where none is stored. Raises StoreError for a damaged name."""
        name = self._held.meant(reference)
        return None if name is None else self._held.of(name)

    def remove(self, reference: str) -> int:
        """Deletes a name, sound or damaged, the model where no other name holds it, and what is left of a pull of it.

        So go its experts on other disks, as far as these are there; `prune` deletes the others. Returns the bytes that
        were freed. Raises ModelNotFoundError; StoreError for a pull that is still running.
        """
        name = self._held.meant(reference)
        if name is None and (model := _made_of_source(self.list(), reference)) is not None:
            name = model.name
        partials = [
            partial for partial in self.partials() if partial.matches(reference) and not (name and partial.running)
        ]
        if name is None and not partials:
            raise not_found(reference, self._names.all({}))
        freed = sum(partial.discard() for partial in partials)
        if name is None:
            return freed
        with errors_named(self.home / "names"), self.lock():
            if name not in self._names.all({}):  # another process was quicker
                raise not_found(reference, self._names.all({}))
            self._names.remove(name)
            if self._is_layer(mtp_name(name)):
                self._names.remove(mtp_name(name))  # it runs with its model alone
            freed += self._folders.sweep(self._names)
            return freed + self._copies.discard_but(self._folders.all())[0]

    def _is_layer(self, full: str) -> bool:
        with suppress(StoreError):
            model = self._held.of(full)
            return model is not None and model.manifest.info.architecture == MTP
        return False

    def prune(self) -> Pruned:
        """Deletes interrupted pulls, and what no name holds any more: models, their experts on other disks, what was
        kept of their prompts, and what was measured of them.

        So goes what processes that were killed have left, in the store and where the system has temporary files. What
        is in use stays: a pull that is running, a file that is open.
        """
        stopped = [partial for partial in self.partials() if not partial.running]
        freed, left, faults = sum(partial.discard() for partial in stopped), 0, list[str]()
        with errors_named(self.home / "names"), self.lock():
            free_locks(self.home)
            for leftover in find_leftovers(self.home, [copy.path for copy in self._copies.all()]):
                try:
                    leftover.discard()
                    left += leftover.num_bytes
                except StoreError as error:
                    faults.append(str(error))
            freed += left + self._folders.sweep(self._names) + self._folders.sweep_measured()
            elsewhere, away = self._copies.discard_but(self._folders.all())
            return Pruned(len(stopped), freed + elsewhere, left, (*faults, *away))

    def check_origin(self, name: str, source: ModelSource) -> None:
        """Raises UsageError where the name is that of a model of another origin. A damaged model bars nobody.

        source: at the revision that was asked for, as another revision is another origin.
        """
        with suppress(StoreError):
            model = self._held.of(":".join(parse_name(name)))
            if model is not None and not model.is_later(source):
                held = replace(model.manifest.source, revision=model.revision)
                raise UsageError(
                    f"{name} is the name of a model of {written(held)}, which is kept; `moeinf pull "
                    f"{written(source)} --name OTHER` stores {written(source)} under another name"
                )

    def bind(
        self, name: str, model_folder: str, preset_text: str | None = None, revision: str | None = None
    ) -> StoredModel:
        """Points a name at a model and deletes models that no name holds any more. Under `lock` only.

        preset_text: what goes with the name from now on; None keeps what did. revision: that was asked for under this
        name; None where the source has none.
        """
        full = ":".join(parse_name(name))
        if preset_text is None:
            with suppress(StoreError):
                preset_text = self._names.read(full).preset_text
        held = Held(model_folder, preset_text or "", revision)
        self._names.write(full, held)
        self._folders.sweep(self._names)
        return StoredModel(full, model_folder, self._folders.path(model_folder), held.preset_text, revision)

    def copy(self, reference: str, name: str, preset_text: str | None = None) -> StoredModel:
        """Gives a stored model one more name. preset_text: what goes with it; None for what goes with the old one.

        Raises ModelNotFoundError, and UsageError for what is no name or that of another model.
        """
        model, full = self.find(reference), ":".join(parse_name(name))
        with errors_named(self.home / "names"), self.lock():
            held = self._names.read(full).identifier
            if held not in ("", model.id):
                raise UsageError(f"{full} is the name of another model; `moeinf rm {full}` deletes it")
            text = model.preset_text if preset_text is None else preset_text
            return self.bind(name, model.id, text, model.asked_revision)

    def publish(self, folder: Path, identifier: str, name: str, asked: ModelSource) -> StoredModel:
        """Moves a complete model folder into the store, under a name; a model that the name had before goes if unheld.

        asked: the source at the revision that was asked for.

        Raises UsageError where another process has given the name to a model of another origin meanwhile.
        """
        with errors_named(folder), self.lock():
            self.check_origin(name, asked)
            self._folders.adopt(folder, identifier)
            self._copies.undivide(identifier)
            return self.bind(name, identifier, revision=asked.revision)

    def made_of(self, fingerprint: str) -> Sequence[StoredModel]:
        """Returns sound models made of this state of a source, under each of their names, which may be none: ""."""
        folders, named = self._folders.all(), self.list()
        nameless = folders.keys() - {model.id for model in named}
        models = [*named, *(StoredModel("", name, folders[name]) for name in nameless)]
        made = [model for model in models if model.source_record().get("fingerprint") == fingerprint]
        return [model for model in made if _intact(model)]

    def partials(self) -> Partials:
        """Returns the pulls that are running or were interrupted."""
        return list(find_partials(self.home))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other processes from publishing or removing models meanwhile; short, so nothing is said."""
        make_folders(self.home)
        with locked(self.home / ".lock"):
            yield


def _made_of_source(models: Iterable[StoredModel], reference: str) -> StoredModel | None:
    """The model that was pulled from a repository of the Hub, at the revision that the reference has.

    Of several, one under the name that a pull gives goes first. What `create` has made of it is another model, and so
    is one that an adapter is in.
    """
    asked = address_source(reference) or repository_source(reference)
    if asked is None:
        return None
    found = []
    for model in models:
        with suppress(StoreError):  # whatever it was made of, a damaged one cannot be used
            if not model.preset_text and _is_of(model, asked) and not _has_adapter(model):
                found.append(model)
    usual = ":".join(parse_name(default_name(asked)))
    found.sort(key=lambda model: (model.revision != asked.revision, model.name != usual))
    return next(iter(found), None)


def _has_adapter(model: StoredModel) -> bool:
    asked = parse_source_record(model.source_record())
    return asked is not None and asked.adapter is not None


def _is_of(model: StoredModel, asked: ModelSource) -> bool:
    """Whether a model is what a reference to a repository asks for. Raises StoreError."""
    source, wanted = model.manifest.source, asked.revision
    if source.kind != "hub" or source.location.lower() != asked.location.lower():
        return False
    short = len(wanted) >= LEAST_COMMIT and source.revision.startswith(wanted)
    return is_file(asked.file, source.file) and (model.revision == wanted or short)


def _intact(model: StoredModel) -> bool:
    """Tells whether the manifest is sound and every file has its length. `verify` checks the bytes."""
    try:
        sizes = model.manifest.file_sizes()
        return all((model.path / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, StoreError):
        return False
