"""Which models have experts on another disk as well, and where: a file of the store says so."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Final

from moeinf.errors import StoreError
from moeinf.store.files import errors_named, is_path, make_folders, parse_json_object, publish, read_small
from moeinf.store.naming.name_files import ID
from moeinf.types import BLOCK_ALIGN_BYTES, Json

COPIES_FILE: Final = "copies.json"  # in the store's folder
EXPERTS: Final = "moeinf-experts"  # in a folder on another disk: a folder for each model, by its id
_MOST_BYTES: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Copy:
    """The experts of a model on another disk: all of them, or a part of each, of which the store has the rest."""

    folder: str  # absolute
    id: str  # of the model
    name: str  # under which it was spread
    # Of a model that is divided: how many bytes of each expert's block the store has, by layer. The others lie here, in
    # files as long as the store's, each byte at its place. Empty: this folder has all bytes, and so has the store.
    first_bytes: tuple[int, ...] = ()

    @property
    def divided(self) -> bool:
        return bool(self.first_bytes)

    @property
    def path(self) -> Path:
        """The folder of its files."""
        return Path(self.folder) / EXPERTS / self.id

    def is_in(self, folder: Path) -> bool:
        """Whether that is its folder, by whatever path."""
        with suppress(OSError):
            return os.path.samefile(folder, self.folder)
        return Path(self.folder) == folder

    def discard(self) -> int:
        """Deletes its files; returns the bytes that were freed. Raises StoreError, also where the disk is away."""
        with errors_named(Path(self.folder)):
            if not Path(self.folder).is_dir():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.folder)
            if not self.path.is_dir():
                return 0
            freed = sum(each.stat().st_blocks * 512 for each in self.path.iterdir() if each.is_file())
            shutil.rmtree(self.path)
            with suppress(OSError):  # experts of other models lie there
                self.path.parent.rmdir()
            return freed


class CopyList:
    """What the file says. Holds no state; what changes it is called under the store's lock only."""

    def __init__(self, home: Path) -> None:
        self._path = home / COPIES_FILE

    def all(self) -> list[Copy]:
        """Raises StoreError for a file that is not sound."""
        try:
            data = read_small(self._path, _MOST_BYTES)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror}; make it readable") from error
        items = parse_json_object(data, str(self._path), StoreError).get("copies")
        found = [_parse(item) for item in items] if isinstance(items, list) else [None]
        copies = [each for each in found if each is not None]
        if len(copies) < len(found):
            raise StoreError(f"{self._path} is damaged; delete it, and `moeinf spread` the models again")
        return copies

    def of(self, identifier: str) -> list[Copy]:
        """Those of a model. Raises StoreError."""
        return [each for each in self.all() if each.id == identifier]

    def put(self, copy: Copy) -> None:
        """Adds a copy, or what is new of it. Raises OSError, StoreError."""
        self._write([*(each for each in self.all() if not _same(each, copy)), copy])

    def forget(self, copy: Copy) -> None:
        self._write([each for each in self.all() if not _same(each, copy)])

    def undivide(self, identifier: str) -> None:
        """Says that the store has all bytes of a model, whatever lies elsewhere."""
        for copy in self.of(identifier):
            if copy.divided:
                self.put(replace(copy, first_bytes=()))

    def discard_but(self, models: Container[str]) -> tuple[int, list[str]]:
        """Deletes the copies of all models but these: the bytes that were freed, and a line for each that is left."""
        freed, left = 0, list[str]()
        for copy in self.all():
            if copy.id in models:
                continue
            try:
                freed += copy.discard()
            except StoreError as error:
                left.append(f"experts of {copy.name} are left in {copy.folder}, which `moeinf prune` deletes: {error}")
            else:
                self.forget(copy)
        return freed, left

    def _write(self, copies: Sequence[Copy]) -> None:
        make_folders(self._path.parent)
        value = {"copies": [asdict(each) for each in copies]}
        publish(self._path, (json.dumps(value, indent=1) + "\n").encode())


def _same(one: Copy, other: Copy) -> bool:
    return (one.folder, one.id) == (other.folder, other.id)


def _parse(item: Json) -> Copy | None:
    """None for what is no copy."""
    if not isinstance(item, dict) or item.keys() != {each.name for each in fields(Copy)}:
        return None
    folder, identifier, name, first = (item[each.name] for each in fields(Copy))
    texts = isinstance(folder, str) and isinstance(identifier, str) and isinstance(name, str)
    if (
        not texts
        or not is_path(folder)
        or not Path(folder).is_absolute()
        or not ID.fullmatch(identifier)
        or not isinstance(first, list)
    ):
        return None
    if not all(type(each) is int and each > 0 and each % BLOCK_ALIGN_BYTES == 0 for each in first):
        return None
    return Copy(folder, identifier, name, tuple(first))
