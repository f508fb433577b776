"""The folders of a store's models, one for each id: put there whole, and deleted whole once no name holds them."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from moeinf.errors import StoreError
from moeinf.store.files import make_folders, sync_folder
from moeinf.store.naming.name_files import ID, NameFiles

_TRASH = ".trash-"
SENSITIVITIES: Final = "sensitivities"  # what parts of a model may lose
CALIBRATIONS: Final = "calibrations"  # what its matrices are multiplied with


def prefix_folder(home: Path, identifier: str) -> Path:
    """The folder in which the model of this id keeps the beginnings of prompts, gone with the model."""
    return home / "prefixes" / identifier


def measured_folder(home: Path, kind: str, identifier: str) -> Path:
    """The folder of what was measured of the model of this id; it outlives the model until a `prune`.

    kind: SENSITIVITIES or CALIBRATIONS. A checkpoint that is deleted once it was fitted, and stored again, has its id.
    """
    return home / kind / identifier


class ModelFolders:
    """Holds no state: every call reads the disk. What changes it is called under the store's lock only."""

    def __init__(self, home: Path) -> None:
        self._home, self._folder = home, home / "models"

    def path(self, identifier: str) -> Path:
        return self._folder / identifier

    def all(self) -> dict[str, Path]:
        """The folder of each id; other things in models/ are left out."""
        return {path.name: path for path in self._folder.glob("*") if ID.fullmatch(path.name)}

    def is_away(self, identifier: str) -> bool:
        """Whether a model that is not there may lie on a disk which is not mounted at the moment."""
        return self.path(identifier).is_symlink() or not any(self._folder.glob("*"))

    def adopt(self, folder: Path, identifier: str) -> None:
        """Moves a complete model folder into models/; one of the same id there is replaced."""
        make_folders(self._folder)
        target = self.path(identifier)
        if target.exists():
            self._discard(target)
        os.rename(folder, target)
        sync_folder(self._folder)

    def sweep(self, names: NameFiles) -> int:
        """Deletes models that no name holds, and what killed processes have left; returns the models' bytes.

        While a name is damaged, nobody knows which model it held: then none is deleted.
        """
        names.sweep()
        try:
            held = {names.read(full).identifier for full in names.all()}
            unheld = [path for name, path in self.all().items() if name not in held and not path.is_symlink()]
        except StoreError:
            unheld = []
        unheld = [path for path in unheld if path.is_dir()]
        unheld += [prefixes for path in unheld if (prefixes := prefix_folder(self._home, path.name)).is_dir()]
        freed = _freed_bytes(path for folder in unheld for path in folder.iterdir() if path.is_file())
        for folder in (*unheld, *self._folder.glob(f"{_TRASH}*")):
            self._discard(folder)
        return freed

    def sweep_measured(self) -> int:
        """Deletes what was measured of models that are not there; returns its bytes."""
        held, freed = self.all(), 0
        for path in (each for kind in (SENSITIVITIES, CALIBRATIONS) for each in (self._home / kind).glob("*")):
            if path.name not in held:
                files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
                freed += sum(file.stat().st_size for file in files)
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        return freed

    def _discard(self, folder: Path) -> None:
        """Moves a model out of sight before it is deleted: a kill in between leaves no half model under its id."""
        trash = folder.with_name(f"{_TRASH}{folder.name}-{os.getpid()}")
        if folder.name.startswith(_TRASH):
            trash = folder
        else:
            os.rename(folder, trash)
            sync_folder(self._folder)
        shutil.rmtree(trash)


def _freed_bytes(paths: Iterable[Path]) -> int:
    """What deleting these files gives back: one that another model shares stays (see store/sharing.py)."""
    links, sizes = Counter[int](), dict[int, tuple[int, int]]()
    for path in paths:
        info = path.stat()
        links[info.st_ino] += 1
        on_disk = min(info.st_size, info.st_blocks * 512)  # a divided model has a part of its files here
        sizes[info.st_ino] = info.st_nlink, on_disk
    return sum(size for inode, (held, size) in sizes.items() if links[inode] == held)
