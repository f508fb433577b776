"""The models that a store holds: found by name or source, listed, named and removed."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

from moeinf.errors import ModelNotFoundError, StoreError, UsageError
from moeinf.store.files import errors_named, is_there, make_folders, read_small, sync_folder
from moeinf.store.format import DENSE_FILE
from moeinf.store.manifest import MANIFEST_FILE, Manifest, ModelSource, load
from moeinf.store.naming.aliases import alias_of, aliases
from moeinf.store.naming.name_files import ID, Held, NameFiles, remedy
from moeinf.store.naming.names import DEFAULT_TAG, MOST_CHARS, has_tag, meant, parse_name
from moeinf.store.naming.references import (
    LEAST_COMMIT,
    address_source,
    asked_revision,
    default_name,
    is_file,
    repository_source,
    written,
)
from moeinf.store.partials import PartialPull, find_partials
from moeinf.store.processes.leftovers import find_leftovers, free_locks
from moeinf.store.processes.locks import locked

# Beside the manifest: the state of the source that the model was made of. `verify` deletes it when it finds damage.
SOURCE_RECORD_FILE = "receipt.json"
_TRASH = ".trash-"


@dataclass(frozen=True)
class StoredModel:
    """A published model. Only `manifest` and what is made of it open the manifest, and raise StoreError."""

    name: str  # "demo:latest"
    id: str  # hex digits, the name of its folder
    path: Path
    preset_text: str = ""  # what goes with this name alone, as engine/stored/preset.py reads it
    asked_revision: str | None = None  # under this name; None where the source record tells, as in older stores

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
            outside = in_place.num_bytes if in_place is not None and in_place.folder else 0
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
        except (OSError, ValueError):
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


def prefix_folder(home: Path, identifier: str) -> Path:
    """The folder in which the model of this id keeps the beginnings of prompts, gone with the model."""
    return home / "prefixes" / identifier


class Library:
    """All access to names/ and models/ of one store. Holds no state: every call reads the disk."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._names = NameFiles(home / "names")
        self._models = home / "models"

    def list(self) -> list[StoredModel]:
        """Returns the published models, newest first. One with two names appears twice, a damaged one not at all."""
        found = [found for found in self._looked_up() if not isinstance(found, StoreError)]
        return sorted(found, key=lambda model: (model.modified, model.name), reverse=True)

    def faults(self) -> Lines:
        """Returns a line with the remedy for each name that `list` leaves out."""
        return [str(found) for found in self._looked_up() if isinstance(found, StoreError)]

    def find(self, reference: str) -> StoredModel:
        """Finds the model called `name` or `name:tag`, or made of `org/repo` or `org/repo@revision`.

        A name may have other capitals, and lack its tag, where one model alone can be meant. Raises
        ModelNotFoundError with close matches and the remedy.
        """
        model = self.named(reference) or self._find_source(reference)
        if model is None:
            raise self._not_found(reference)
        return model

    def named(self, reference: str) -> StoredModel | None:
        """The model whose name is meant; None where none is stored. Raises StoreError for a damaged name."""
        name = self._meant(reference)
        return None if name is None else self._published(name)

    def remove(self, reference: str) -> int:
        """Deletes a name, sound or damaged, the model where no other name holds it, and what is left of a pull of it.

        Returns the bytes that were freed. Raises ModelNotFoundError; StoreError for a pull that is still running.
        """
        name = self._meant(reference) or self._name_of_source(reference)
        partials = [
            partial for partial in self.partials() if partial.matches(reference) and not (name and partial.running)
        ]
        if name is None and not partials:
            raise self._not_found(reference)
        freed = sum(partial.discard() for partial in partials)
        if name is None:
            return freed
        with errors_named(self.home / "names"), self.lock():
            if name not in self._names.all({}):  # another process was quicker
                raise self._not_found(reference)
            self._names.remove(name)
            return freed + self._sweep()

    def prune(self) -> Pruned:
        """Deletes interrupted pulls, and what no name holds any more: models, and what was kept of their prompts.

        So goes what processes that were killed have left, in the store and where the system has temporary files. What
        is in use stays: a pull that is running, a file that is open.
        """
        stopped = [partial for partial in self.partials() if not partial.running]
        freed, left, faults = sum(partial.discard() for partial in stopped), 0, list[str]()
        with errors_named(self.home / "names"), self.lock():
            free_locks(self.home)
            for leftover in find_leftovers(self.home):
                try:
                    leftover.discard()
                    left += leftover.num_bytes
                except StoreError as error:
                    faults.append(str(error))
            return Pruned(len(stopped), freed + left + self._sweep(), left, tuple(faults))

    def check_origin(self, name: str, source: ModelSource) -> None:
        """Raises UsageError where the name is that of a model of another origin. A damaged model bars nobody.

        source: at the revision that was asked for, as another revision is another origin.
        """
        with suppress(StoreError):
            model = self._published(":".join(parse_name(name)))
            if model is not None and not model.is_later(source):
                held = replace(model.manifest.source, revision=model.revision)
                raise UsageError(
                    f"{name} is the name of a model of {written(held)}, which is kept; `moeinf pull "
                    f"{written(source)} --name OTHER` stores {written(source)} under another name"
                )

    def made_of(self, fingerprint: str) -> Sequence[StoredModel]:
        """Returns sound models made of this state of a source, under each of their names, which may be none: ""."""
        folders = {folder.name: folder for folder in self._models.glob("*") if ID.fullmatch(folder.name)}
        named = [model for model in self.list() if model.id in folders]
        nameless = [StoredModel("", each, folders[each]) for each in folders.keys() - {model.id for model in named}]
        made = [model for model in (*named, *nameless) if model.source_record().get("fingerprint") == fingerprint]
        return [model for model in made if _intact(model)]

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
        self._sweep()
        return StoredModel(full, model_folder, self._models / model_folder, held.preset_text, revision)

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

    def adopt(self, folder: Path, identifier: str) -> None:
        """Moves a complete model folder into models/; one of the same id there is replaced. Under `lock` only."""
        make_folders(self._models)
        target = self._models / identifier
        if target.exists():
            self._discard(target)
        os.rename(folder, target)
        sync_folder(self._models)

    def partials(self) -> Partials:
        """Returns the pulls that are running or were interrupted."""
        return list(find_partials(self.home))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other processes from publishing or removing models meanwhile; short, so nothing is said."""
        make_folders(self.home)
        with locked(self.home / ".lock"):
            yield

    def _looked_up(self) -> Iterator[StoredModel | StoreError]:
        """Yields the model of every name, or what is wrong with it."""
        refused: dict[Path, StoreError] = {}
        names = self._names.all(refused)
        yield from refused.values()
        for full in names:
            try:
                model = self._published(full)
                if model is None and self._names.read(full).identifier:  # else the name itself has gone meanwhile
                    raise StoreError(f"the model of {full} is gone; {self._remedy_of_gone(full)}")
                if model is not None:
                    _ = model.modified  # the disk may still refuse to tell
                    yield model
            except StoreError as error:
                yield error

    def _published(self, full: str) -> StoredModel | None:
        """Returns a name's model; None where either is missing. Raises StoreError for a damaged name."""
        held = self._names.read(full)
        folder = self._models / held.identifier
        sound = held.identifier and is_there(folder / MANIFEST_FILE)
        return StoredModel(full, held.identifier, folder, held.preset_text, held.revision) if sound else None

    def _remedy_of_gone(self, full: str) -> str:
        """Of a name whose model is not there: that may lie on a disk which is not mounted at the moment."""
        folder = self._models / self._names.read(full).identifier
        if folder.is_symlink() or not any(self._models.glob("*")):
            return f"mount the disk that {folder} is on, or pull the model again"
        return remedy(full)

    def _meant(self, reference: str) -> str | None:
        """The full name under which a model is stored, also where it is damaged, that a reference means."""
        try:
            found = self._names.find(reference)
        except UsageError as error:
            if len(reference) <= MOST_CHARS and ("/" in reference or "@" in reference):  # a source
                return None
            raise ModelNotFoundError(str(error)) from error
        if len(found) != 1:
            return None
        [name] = found
        by_tag = not has_tag(reference) and not name.endswith(f":{DEFAULT_TAG}")
        return None if by_tag and self._is_of_another(reference, name) else name

    def _is_of_another(self, reference: str, name: str) -> bool:
        """Whether a reference without a tag is a known name, and that of other weights than those of a tagged name."""
        known = aliases(self.home).get(alias_of(parse_name(reference)[0]))
        with suppress(StoreError):
            model = self._published(name)
            return known is not None and model is not None and not model.manifest.source.same_origin(known)
        return known is not None

    def _find_source(self, reference: str) -> StoredModel | None:
        """The model that was pulled from a repository of the Hub, at the revision that the reference has.

        Of several, one under the name that a pull gives goes first. What `create` has made of it is another model.
        """
        asked = address_source(reference) or repository_source(reference)
        if asked is None:
            return None
        found = []
        for model in self.list():
            with suppress(StoreError):  # whatever it was made of, a damaged one cannot be used
                if not model.preset_text and _is_of(model, asked):
                    found.append(model)
        usual = ":".join(parse_name(default_name(asked)))
        found.sort(key=lambda model: (model.revision != asked.revision, model.name != usual))
        return next(iter(found), None)

    def _name_of_source(self, reference: str) -> str | None:
        model = self._find_source(reference)
        return None if model is None else model.name

    def _not_found(self, reference: str) -> ModelNotFoundError:
        names, several = self._names.all({}), list[str]()
        with suppress(UsageError):
            several = meant(reference, names)[:3]
        shown = [name.removesuffix(f":{DEFAULT_TAG}") for name in several or names]
        close = shown if several else difflib.get_close_matches(reference, shown, n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(close)}?" if close else "see `moeinf list`"
        safe = reference[:100] if reference.isprintable() else ascii(reference[:100])
        return ModelNotFoundError(f"model '{safe}' not found; {hint} (`moeinf pull` fetches a model)")

    def _sweep(self) -> int:
        """Deletes models that no name holds, and what killed processes have left; returns the models' bytes.

        While a name is damaged, nobody knows which model it held: then none is deleted.
        """
        self._names.sweep()
        try:
            held = {self._names.read(full).identifier for full in self._names.all()}
            unheld = [
                folder
                for folder in self._models.glob("*")
                if ID.fullmatch(folder.name) and folder.name not in held and folder.is_dir() and not folder.is_symlink()
            ]
        except StoreError:
            unheld = []
        unheld += [prefixes for folder in unheld if (prefixes := prefix_folder(self.home, folder.name)).is_dir()]
        freed = _freed_bytes(path for folder in unheld for path in folder.iterdir() if path.is_file())
        for folder in (*unheld, *self._models.glob(f"{_TRASH}*")):
            self._discard(folder)
        return freed

    def _discard(self, folder: Path) -> None:
        """Moves a model out of sight before it is deleted: a kill in between leaves no half model under its id."""
        trash = folder.with_name(f"{_TRASH}{folder.name}-{os.getpid()}")
        if folder.name.startswith(_TRASH):
            trash = folder
        else:
            os.rename(folder, trash)
            sync_folder(self._models)
        shutil.rmtree(trash)


def _freed_bytes(paths: Iterable[Path]) -> int:
    """What deleting these files gives back: one that another model shares stays (see store/sharing.py)."""
    links, sizes = Counter[int](), dict[int, tuple[int, int]]()
    for path in paths:
        info = path.stat()
        links[info.st_ino] += 1
        sizes[info.st_ino] = info.st_nlink, info.st_size
    return sum(size for inode, (held, size) in sizes.items() if links[inode] == held)


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
