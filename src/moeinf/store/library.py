"""The models that a store holds: found by name or source, listed, named and removed."""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

from moeinf.errors import ModelNotFoundError, StoreError, UsageError
from moeinf.store.files import errors_named, make_folders, publish, read_small, sync_folder
from moeinf.store.format import DENSE_FILE
from moeinf.store.manifest import MANIFEST_FILE, Manifest, load
from moeinf.store.names import DEFAULT_TAG, is_word, parse_name

RECEIPT_FILE = "receipt.json"  # beside the manifest: which source state the model was made of; gone once damage is seen
_ID = re.compile(r"[0-9a-f]{12,64}")


@dataclass(frozen=True)
class StoredModel:
    """A published model. Only `manifest` and what is made of it open the manifest, and raise StoreError."""

    name: str  # "demo:latest"
    id: str  # hex digits, the name of its folder
    path: Path

    @cached_property
    def manifest(self) -> Manifest:
        return load(self.path / MANIFEST_FILE, self.id)

    @property
    def size_bytes(self) -> int:
        """Bytes on disk, also of a damaged model."""
        with errors_named(self.path):
            return sum(entry.stat().st_size for entry in os.scandir(self.path) if entry.is_file(follow_symlinks=False))

    @property
    def modified(self) -> datetime:
        """When it was published, in UTC."""
        with errors_named(self.path):
            return datetime.fromtimestamp((self.path / MANIFEST_FILE).stat().st_mtime, timezone.utc)

    @property
    def dense_path(self) -> Path:
        return self.path / DENSE_FILE

    @property
    def shard_paths(self) -> list[Path]:
        """One for each MoE layer."""
        return [self.path / shard.file for shard in self.manifest.shards]

    def receipt(self) -> dict[str, str]:
        """What `pull` noted of the source, empty where it must not be relied on."""
        try:
            value = json.loads(read_small(self.path / RECEIPT_FILE, 1 << 16))
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) and all(isinstance(v, str) for v in value.values()) else {}


@dataclass(frozen=True, slots=True)
class PartialPull:
    """A pull that is under way or was interrupted; repeating it goes on where it stopped."""

    label: str  # what was pulled
    path: Path
    size_bytes: int  # on disk


Partials = list[PartialPull]  # inside Library, `list` is the method


class Library:
    """All access to names/ and models/ of one store. Holds no state: every call reads the disk."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._names = home / "names"
        self._models = home / "models"

    def list(self) -> list[StoredModel]:
        """Published models, newest first; a model with two names appears under each."""
        found = [model for name, tag in self._all_names() if (model := self._published(name, tag))]
        return sorted(found, key=lambda model: (model.modified, model.name), reverse=True)

    def find(self, reference: str) -> StoredModel:
        """The model called `name`, `name:tag`, or made of `org/repo` or `org/repo@revision`.

        Raises ModelNotFoundError with close matches and the remedy.
        """
        model = self._find_source(reference) if "/" in reference else self._find_name(reference)
        if model is None:
            raise self._not_found(reference)
        return model

    def remove(self, reference: str) -> int:
        """Deletes a name, and the model where no other name holds it; returns the bytes that were freed."""
        model = self.find(reference)
        name, tag = parse_name(model.name)
        folder = self._names / name
        with errors_named(folder), self.lock():
            (folder / tag).unlink()
            sync_folder(folder)
            with suppress(OSError):  # other tags are left in it
                folder.rmdir()
            return self._sweep()

    def made_of(self, fingerprint: str) -> Sequence[StoredModel]:
        """Sound models made of this state of a source, also ones without a name; `name` is then empty."""
        names = {model.id: model.name for model in reversed(self.list())}
        found = []
        for folder in self._models.glob("*"):
            model = StoredModel(names.get(folder.name, ""), folder.name, folder)
            if _ID.fullmatch(folder.name) and model.receipt().get("fingerprint") == fingerprint:
                found.append(model)
        return [model for model in found if _intact(model)]

    def bind(self, name: str, model_folder: str) -> StoredModel:
        """Points a name at a model and deletes models that no name holds any more. Under `lock` only."""
        word, tag = parse_name(name)
        make_folders(self._names / word)
        publish(self._names / word / tag, f"{model_folder}\n".encode())
        self._sweep()
        return StoredModel(f"{word}:{tag}", model_folder, self._models / model_folder)

    def adopt(self, folder: Path, identifier: str) -> None:
        """Moves a complete model folder into models/; one of the same id there is replaced. Under `lock` only."""
        make_folders(self._models)
        target = self._models / identifier
        if target.exists():
            self._discard(target)
        os.rename(folder, target)
        sync_folder(self._models)

    def partials(self) -> Partials:
        """Interrupted and running pulls."""
        found = []
        for folder in sorted(path for path in self.home.glob("partial/*") if path.is_dir()):
            try:
                label = str(json.loads(read_small(folder / "journal.json"))["label"])
            except (OSError, ValueError, KeyError, TypeError):
                label = "unknown"
            with suppress(OSError):
                files = [path for path in folder.rglob("*") if path.is_file()]
                found.append(PartialPull(label, folder, sum(path.stat().st_blocks * 512 for path in files)))
        return found

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

    def _published(self, name: str, tag: str) -> StoredModel | None:
        """None where the name is unknown, or its model is gone."""
        path = self._names / name / tag
        try:
            identifier = read_small(path, 1 << 10).decode("utf-8", "replace").strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from error
        if not _ID.fullmatch(identifier):
            raise StoreError(f"{path} does not hold the id of a model; delete it and pull {name!r} again")
        folder = self._models / identifier
        return StoredModel(f"{name}:{tag}", identifier, folder) if (folder / MANIFEST_FILE).is_file() else None

    def _find_name(self, reference: str) -> StoredModel | None:
        try:
            return self._published(*parse_name(reference))
        except UsageError as error:
            raise ModelNotFoundError(str(error)) from error

    def _find_source(self, reference: str) -> StoredModel | None:
        repo, _, revision = reference.partition("@")
        for model in self.list():
            source = model.manifest.source
            if source.kind != "hub" or source.location.lower() != repo.lower():
                continue
            short = len(revision) >= 7 and source.revision.startswith(revision)
            if not revision or short or model.receipt().get("requested") == revision:
                return model
        return None

    def _not_found(self, reference: str) -> ModelNotFoundError:
        stored = [f"{name}:{tag}" for name, tag in self._all_names()]
        shown = [name.removesuffix(f":{DEFAULT_TAG}") for name in stored]
        close = difflib.get_close_matches(reference, shown, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else "see `moeinf list`"
        safe = reference[:100] if reference.isprintable() else ascii(reference[:100])
        return ModelNotFoundError(f"model '{safe}' not found; {hint} (`moeinf pull` fetches a model)")

    def _sweep(self) -> int:
        """Deletes models that no name holds, and what killed processes have left; returns the models' bytes."""
        for temporary in self._names.glob("*/.*.tmp"):
            temporary.unlink()
        held = set()
        for name, tag in self._all_names():
            held.add(read_small(self._names / name / tag, 1 << 10).decode("utf-8", "replace").strip())
        freed = 0
        for folder in self._models.glob("*"):
            if folder.name not in held:
                freed += sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
                self._discard(folder)
        return freed

    def _discard(self, folder: Path) -> None:
        """Moves a model out of sight before it is deleted: a kill in between leaves no half model under its id."""
        trash = folder.with_name(f".trash-{folder.name}-{os.getpid()}")
        if folder.name.startswith("."):
            trash = folder
        else:
            os.rename(folder, trash)
            sync_folder(self._models)
        shutil.rmtree(trash)


def _intact(model: StoredModel) -> bool:
    """Manifest sound and no file missing or of a wrong length; the bytes are `verify`'s matter."""
    try:
        sizes = model.manifest.file_sizes()
        return all((model.path / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, StoreError):
        return False


def partial_folder(home: Path, locator: str) -> Path:
    """The work folder of pulls of one source."""
    return home / "partial" / hashlib.sha256(locator.encode("utf-8", "surrogateescape")).hexdigest()[:16]
