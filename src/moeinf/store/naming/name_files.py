"""The files of names: which model each name holds, and what else goes with the name."""

from __future__ import annotations

import errno
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from moeinf.errors import StoreError, UsageError
from moeinf.store.files import make_folders, named, publish, read_small, sync_folder
from moeinf.store.naming.names import file_of, meant, parse_name, plain_name, word_of

ID = re.compile(r"[0-9a-f]{12,64}")
_REVISION = " @"  # between the id and the revision
_MOST_BYTES = 1 << 22  # of the file of a name, with what goes with it


@dataclass(frozen=True, slots=True)
class Held:
    """What the file of a name says."""

    identifier: str  # of the model; "" for an unknown name
    preset_text: str = ""
    revision: str | None = None  # that was asked for under this name; None where the file does not tell

    def dumps(self) -> bytes:
        head = self.identifier + ("" if self.revision is None else f"{_REVISION}{self.revision}")
        return "".join(f"{line}\n" for line in (head, self.preset_text) if line).encode()


class NameFiles:
    """A folder for each name and a file for each of its tags. Holds no state: every call reads the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def all(self, refused: dict[Path, StoreError] | None = None) -> dict[str, Path]:
        """The file of each full name. What a disk that ignores capitals says of a path is never asked.

        refused: gets the errors of folders that the system does not list. Without it the first one is raised: whoever
        deletes what no name holds has to know all names.
        """
        found, paths, folders = {}, list[Path](), [self._folder]
        for folder in folders:
            try:
                inside = _entries(folder)
            except StoreError as error:
                if refused is None:
                    raise
                refused[folder] = error
                continue
            if folder == self._folder:
                folders += inside
            else:
                paths += inside
        for path in sorted(paths, reverse=True):
            full = f"{word_of(path.parent.name)}:{word_of(path.name)}"
            with suppress(UsageError):  # temporary files begin with a dot
                if ":".join(parse_name(full)) == full:
                    found[full] = path
        return found

    def find(self, reference: str) -> list[str]:
        """The full names that a reference can mean. Raises UsageError for what is no name.

        Raises StoreError where the system does not list the folder in which it would be.
        """
        refused: dict[Path, StoreError] = {}
        found = meant(reference, self.all(refused))
        if not found and refused:
            wanted = parse_name(plain_name(reference))[0].lower()
            for folder, error in refused.items():
                if folder == self._folder or word_of(folder.name).lower() == wanted:
                    raise error
        return found

    def read(self, full: str) -> Held:
        """Raises StoreError for a damaged name."""
        path = self._path(full)
        try:
            text = read_small(path, _MOST_BYTES).decode("utf-8", "replace").strip()
        except OSError as error:
            if isinstance(error, (FileNotFoundError, NotADirectoryError)) and not path.is_symlink():
                return Held("")
            if isinstance(error, FileNotFoundError):
                raise StoreError(f"{path} is a link to what is not there; mount that, or {remedy(full)}") from error
            if error.errno == errno.EBADMSG:
                raise StoreError(f"{path}: {error.strerror}; {remedy(full)}") from error
            raise named(error, str(path)) from error
        head, _, preset_text = text.partition("\n")
        identifier, told, revision = f"{head} ".partition(_REVISION)
        if not ID.fullmatch(identifier.strip()):
            raise StoreError(f"{path} does not hold the id of a model; {remedy(full)}")
        return Held(identifier.strip(), preset_text, revision.strip() if told else None)

    def write(self, full: str, held: Held) -> None:
        """Under the store's lock only. Raises UsageError for more than a name can hold."""
        data = held.dumps()
        if len(data) > _MOST_BYTES:
            raise UsageError(f"{full} would have more than {_MOST_BYTES >> 20} MiB beside its model; give it less")
        self._rename_older(full)
        path = self._new_path(full)
        make_folders(path.parent)
        publish(path, data)

    def remove(self, full: str) -> None:
        """Deletes a name, sound or damaged. Under the store's lock only."""
        path = self._path(full)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        sync_folder(path.parent)
        with suppress(OSError):  # other tags are left in it
            path.parent.rmdir()

    def sweep(self) -> None:
        """Deletes what killed processes have left."""
        for temporary in self._folder.glob("*/.*.tmp"):
            temporary.unlink()

    def _path(self, full: str) -> Path:
        return self.all({}).get(full) or self._new_path(full)

    def _new_path(self, full: str) -> Path:
        name, tag = parse_name(full)
        return self._folder / file_of(name) / file_of(tag)

    def _rename_older(self, full: str) -> None:
        """Gives files of older versions, whose names have capitals, names that no disk takes for the new one's."""
        for name, path in self.all({}).items():
            new = self._new_path(name)
            if new != path and name.lower().partition(":")[0] == full.lower().partition(":")[0]:
                make_folders(new.parent)
                os.rename(path, new)
                sync_folder(new.parent)
                with suppress(OSError):  # other tags are left in it
                    path.parent.rmdir()


def _entries(folder: Path) -> list[Path]:
    """What is in a folder; nothing where it is none. (Path.glob leaves out without a word what it may not list.)"""
    try:
        return [folder / name for name in os.listdir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise named(error, str(folder)) from error


def remedy(full: str) -> str:
    """For a damaged name."""
    return f"`moeinf rm {full}` deletes the name"
