"""The models that a store holds: found by name or source, listed, named and removed."""

from __future__ import annotations

import difflib
import fcntl
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

from moeinf.errors import ModelNotFoundError, StoreError, UsageError
from moeinf.store.files import errors_named, make_folders, publish, read_small, sync_folder
from moeinf.store.format import DENSE_FILE
from moeinf.store.manifest import MANIFEST_FILE, Manifest, ModelSource, load
from moeinf.store.names import DEFAULT_TAG, is_word, parse_name
from moeinf.store.partials import PartialPull, find_partials

# Beside the manifest: the state of the source that the model was made of. `verify` deletes it when it finds damage.
SOURCE_RECORD_FILE = "receipt.json"
_ID = re.compile(r"[0-9a-f]{12,64}")
_TRASH = ".trash-"
_MOST_NAME_BYTES = 1 << 17  # of the file of a name, with what goes with it
_HUB_PREFIX = re.compile(r"^(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/|^hf://", re.IGNORECASE)
_GGUF_END = re.compile(r"(-\d{5}-of-\d{5})?\.gguf$")


@dataclass(frozen=True)
class StoredModel:
    """A published model. Only `manifest` and what is made of it open the manifest, and raise StoreError."""

    name: str  # "demo:latest"
    id: str  # hex digits, the name of its folder
    path: Path
    preset_text: str = ""  # what goes with this name alone, as engine/stored/preset.py reads it

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


Partials = list[PartialPull]  # inside Library, `list` is the method
Lines = list[str]


def prefix_folder(home: Path, identifier: str) -> Path:
    """The folder in which the model of this id keeps the beginnings of prompts, gone with the model."""
    return home / "prefixes" / identifier


class Library:
    """All access to names/ and models/ of one store. Holds no state: every call reads the disk."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._names = home / "names"
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

        Raises ModelNotFoundError with close matches and the remedy.
        """
        model = self._find_source(reference) if "/" in reference else self._find_name(reference)
        if model is None:
            raise self._not_found(reference)
        return model

    def remove(self, reference: str) -> int:
        """Deletes a name, sound or damaged, the model where no other name holds it, and what is left of a pull of it.

        Returns the bytes that were freed. Raises ModelNotFoundError; StoreError for a pull that is still running.
        """
        name = self._name_to_remove(reference)
        partials = [
            partial for partial in self.partials() if partial.matches(reference) and not (name and partial.running)
        ]
        if name is None and not partials:
            raise self._not_found(reference)
        freed = sum(partial.discard() for partial in partials)
        if name is None:
            return freed
        path = self._names.joinpath(*parse_name(name))
        with errors_named(path), self.lock():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
            sync_folder(path.parent)
            with suppress(OSError):  # other tags are left in it
                path.parent.rmdir()
            return freed + self._sweep()

    def prune(self) -> tuple[int, int]:
        """Deletes interrupted pulls, and what no name holds any more: models, and what was kept of their prompts.

        Returns how many pulls these were, and the bytes that were freed. A pull that is running stays.
        """
        stopped = [partial for partial in self.partials() if not partial.running]
        freed = sum(partial.discard() for partial in stopped)
        with errors_named(self._names), self.lock():
            return len(stopped), freed + self._sweep()

    def check_origin(self, name: str, source: ModelSource) -> None:
        """Raises UsageError where the name is that of a model of another origin. A damaged model bars nobody."""
        with suppress(StoreError):
            model = self._find_name(name)
            if model is not None and not model.manifest.source.same_origin(source):
                raise UsageError(
                    f"{name} is the name of a model of {model.manifest.source.location}, which is kept; `moeinf pull "
                    f"{source.location} --name OTHER` stores {source.location} under another name"
                )

    def made_of(self, fingerprint: str) -> Sequence[StoredModel]:
        """Returns sound models made of this state of a source. One without a name has an empty `name`."""
        names = {model.id: model.name for model in reversed(self.list())}
        found = []
        for folder in self._models.glob("*"):
            model = StoredModel(names.get(folder.name, ""), folder.name, folder)
            if _ID.fullmatch(folder.name) and model.source_record().get("fingerprint") == fingerprint:
                found.append(model)
        return [model for model in found if _intact(model)]

    def bind(self, name: str, model_folder: str, preset_text: str | None = None) -> StoredModel:
        """Points a name at a model and deletes models that no name holds any more. Under `lock` only.

        preset_text: what goes with the name from now on; None keeps what did.
        """
        word, tag = parse_name(name)
        make_folders(self._names / word)
        if preset_text is None:
            with suppress(StoreError):
                preset_text = self._content(word, tag)[1]
        text = preset_text or ""
        publish(self._names / word / tag, "".join(f"{line}\n" for line in (model_folder, text) if line).encode())
        self._sweep()
        return StoredModel(f"{word}:{tag}", model_folder, self._models / model_folder, text)

    def copy(self, reference: str, name: str, preset_text: str | None = None) -> StoredModel:
        """Gives a stored model one more name. preset_text: what goes with it; None for what goes with the old one.

        Raises ModelNotFoundError, and UsageError for what is no name or that of another model.
        """
        model, full = self.find(reference), ":".join(parse_name(name))
        with errors_named(self._names), self.lock():
            held = self._identifier(*parse_name(name))
            if held not in ("", model.id):
                raise UsageError(f"{full} is the name of another model; `moeinf rm {full}` deletes it")
            return self.bind(name, model.id, model.preset_text if preset_text is None else preset_text)

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
        fd = os.open(self.home / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _all_names(self) -> Iterator[tuple[str, str]]:
        for path in self._names.glob("*/*"):
            if is_word(path.parent.name) and is_word(path.name):  # temporary files begin with a dot
                yield path.parent.name, path.name

    def _looked_up(self) -> Iterator[StoredModel | StoreError]:
        """Yields the model of every name, or what is wrong with it."""
        for word, tag in self._all_names():
            try:
                model = self._published(word, tag)
                if model is None and self._identifier(word, tag):  # else the name itself has gone meanwhile
                    raise StoreError(f"the model of {word}:{tag} is gone; {_mended(word, tag)}")
                if model is not None:
                    _ = model.modified  # the disk may still refuse to tell
                    yield model
            except StoreError as error:
                yield error

    def _published(self, name: str, tag: str) -> StoredModel | None:
        """Returns a name's model; None where either is missing. Raises StoreError for a damaged name."""
        identifier, preset_text = self._content(name, tag)
        folder = self._models / identifier
        with errors_named(folder):
            sound = identifier and (folder / MANIFEST_FILE).is_file()
        return StoredModel(f"{name}:{tag}", identifier, folder, preset_text) if sound else None

    def _identifier(self, name: str, tag: str) -> str:
        return self._content(name, tag)[0]

    def _content(self, name: str, tag: str) -> tuple[str, str]:
        """Returns the id of a name's model, and the text that goes with the name: "" for an unknown name.

        Raises StoreError for a damaged name.
        """
        path = self._names / name / tag
        try:
            text = read_small(path, _MOST_NAME_BYTES).decode("utf-8", "replace").strip()
        except OSError as error:
            if isinstance(error, (FileNotFoundError, NotADirectoryError)) and not path.is_symlink():
                return "", ""
            raise StoreError(f"{path}: {error.strerror}; {_mended(name, tag)}") from error
        identifier, _, preset_text = text.partition("\n")
        if not _ID.fullmatch(identifier):
            raise StoreError(f"{path} does not hold the id of a model; {_mended(name, tag)}")
        return identifier, preset_text

    def _name_to_remove(self, reference: str) -> str | None:
        """Returns the full name under which a model is stored, also where it is damaged."""
        if "/" in reference:
            model = self._find_source(reference)
            return model.name if model else None
        try:
            word, tag = parse_name(reference)
        except UsageError as error:
            raise ModelNotFoundError(str(error)) from error
        return f"{word}:{tag}" if os.path.lexists(self._names / word / tag) else None

    def _find_name(self, reference: str) -> StoredModel | None:
        try:
            return self._published(*parse_name(reference))
        except UsageError as error:
            raise ModelNotFoundError(str(error)) from error

    def _find_source(self, reference: str) -> StoredModel | None:
        repo, _, revision = _HUB_PREFIX.sub("", reference).partition("@")
        repo, _, tag = repo.partition(":")
        wanted = "" if tag.lower() == "latest" else tag.lower()
        for model in self.list():
            try:
                source = model.manifest.source
            except StoreError:  # whatever it was made of, it cannot be used
                continue
            if source.kind != "hub" or source.location.lower() != repo.lower() or not _is_tag(wanted, source.file):
                continue
            short = len(revision) >= 7 and source.revision.startswith(revision)
            if not revision or short or model.source_record().get("requested") == revision:
                return model
        return None

    def _not_found(self, reference: str) -> ModelNotFoundError:
        stored = [f"{name}:{tag}" for name, tag in self._all_names()]
        shown = [name.removesuffix(f":{DEFAULT_TAG}") for name in stored]
        close = difflib.get_close_matches(reference, shown, n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(close)}?" if close else "see `moeinf list`"
        safe = reference[:100] if reference.isprintable() else ascii(reference[:100])
        return ModelNotFoundError(f"model '{safe}' not found; {hint} (`moeinf pull` fetches a model)")

    def _sweep(self) -> int:
        """Deletes models that no name holds, and what killed processes have left; returns the models' bytes.

        While a name is damaged, nobody knows which model it held: then none is deleted.
        """
        for temporary in self._names.glob("*/.*.tmp"):
            temporary.unlink()
        try:
            held = {self._identifier(*name) for name in self._all_names()}
            unheld = [
                folder
                for folder in self._models.glob("*")
                if _ID.fullmatch(folder.name)
                and folder.name not in held
                and folder.is_dir()
                and not folder.is_symlink()
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


def _is_tag(tag: str, file: str) -> bool:
    """Whether a tag, in lower case, means this GGUF file of a repository: its quantisation, or its name."""
    stem = _GGUF_END.sub("", file.lower())
    plain = _GGUF_END.sub("", tag)
    return not tag or stem == plain or stem.endswith(tuple(f"{before}{plain}" for before in "-._/"))


def _mended(name: str, tag: str) -> str:
    """Returns the remedy for a damaged name."""
    return f"`moeinf rm {name}:{tag}` deletes the name"


def _intact(model: StoredModel) -> bool:
    """Tells whether the manifest is sound and every file has its length. `verify` checks the bytes."""
    try:
        sizes = model.manifest.file_sizes()
        return all((model.path / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, StoreError):
        return False
