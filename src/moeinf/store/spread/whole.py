"""Whether what lies of a model on another disk is whole, and how its files are called there."""

from __future__ import annotations

from pathlib import Path

from moeinf.errors import REMEDIES, StoreError
from moeinf.store.library import Library, StoredModel
from moeinf.store.spread.copy_list import COPIES_FILE, Copy, CopyList
from moeinf.store.spread.file_parts import Rest


def copied_files(stored: StoredModel) -> list[bool]:
    """Of each of the model's files of experts, whether it has any: the file of a tower has none."""
    in_place = stored.manifest.in_place
    if in_place is None:
        return [True] * len(stored.shard_paths)
    used = {place.file for layer in in_place.experts for place in layer}
    return [number in used for number in range(len(in_place.files))]


def file_names(stored: StoredModel) -> list[str]:
    """How each file of experts is called in another folder."""
    names = [path.name for path in stored.shard_paths]
    if stored.manifest.in_place is None:
        return names
    return [f"{number:05d}-{name}" for number, name in enumerate(names)]  # they may come from several folders


def copy_paths(copy: Copy, stored: StoredModel) -> list[Path]:
    """The files that are read there: one for each of the store's. Those without experts are read nowhere.

    A file that has a part of each expert says in its name which, so that one divided otherwise is not taken for it.
    """
    names = file_names(stored)
    if copy.divided:
        names = [f"{name}.from-{first}" for name, first in zip(names, copy.first_bytes, strict=True)]
    copied = copied_files(stored)
    return [copy.path / name if has else own for name, has, own in zip(names, copied, stored.shard_paths, strict=True)]


def strides_of(stored: StoredModel) -> list[int]:
    """From one expert to the next, by layer."""
    return [stored.manifest.layout_of(layer).stride_bytes for layer in range(stored.manifest.moe.num_layers)]


def rests_of(stored: StoredModel) -> list[Rest | None]:
    """What of each file of experts lies elsewhere. Raises StoreError."""
    copy = divided_copy(stored)
    if copy is None:
        return [None] * len(stored.shard_paths)
    parts = zip(copy_paths(copy, stored), copy.first_bytes, strides_of(stored), strict=True)
    return [Rest(path, first, stride) for path, first, stride in parts]


def fault_of(copy: Copy, stored: StoredModel) -> str:
    """Why the experts there cannot be read, and the remedy; "" where all files are there. Raises StoreError."""
    folder, name = Path(copy.folder), stored.name
    again = f"`moeinf spread {name} --also {copy.folder}` copies what is missing"
    if copy.divided:
        again = "without that part of its experts it cannot run: put the file back, or pull the model again"
    try:
        if not folder.is_dir():
            forget = "" if copy.divided else f", or forget it (`moeinf spread {name} --gather`)"
            return f"{folder}, which has experts of {name}, is not there; mount its disk{forget}"
        for path, num_bytes, copied in zip(
            copy_paths(copy, stored), stored.shard_sizes, copied_files(stored), strict=True
        ):
            if copied and (found := path.stat().st_size) != num_bytes:
                return f"{path} is {found} bytes long, not {num_bytes}; {again}"
            if copied:
                path.open("rb").close()
    except FileNotFoundError:
        return f"the experts of {name} in {folder} are not all there; {again}"
    except OSError as error:
        remedy = REMEDIES.get(error.errno or 0, "look at the disk and its file system")
        return f"{error.filename or folder}: {error.strerror}; {remedy}"
    return ""


def found_copy(stored: StoredModel, folder: Path) -> Copy | None:
    """What lies of the model's experts in that folder, also where only the folder itself tells. Raises StoreError."""
    for copy in CopyList(stored.home).of(stored.id):
        if copy.is_in(folder):
            return copy
    copy = Copy(str(folder), stored.id, stored.name)
    return copy if copy.path.is_dir() else None


def stale_copy(stored: StoredModel) -> Copy | None:
    """Of this name's model as it was before it was made anew, where nothing replaces it yet. Raises StoreError."""
    copies = CopyList(stored.home).all()
    own = {copy.folder for copy in copies if copy.id == stored.id}
    old = [copy for copy in copies if copy.name == stored.name and copy.id != stored.id and copy.folder not in own]
    if not old:
        return None
    held = {model.id for model in Library(stored.home).list()}
    return next((copy for copy in old if copy.id not in held), None)


def left_copies(library: Library) -> list[Copy]:
    """Those of models that the store has no more: their disk was away when these were deleted. Raises StoreError."""
    held = {model.id for model in library.list()}
    return [copy for copy in CopyList(library.home).all() if copy.id not in held and not Path(copy.folder).is_dir()]


def copies_of(stored: StoredModel) -> list[Copy]:
    """Those that the store knows of. Raises StoreError for a damaged list."""
    return CopyList(stored.home).of(stored.id)


def divided_copy(stored: StoredModel) -> Copy | None:
    """The one that has a part of every expert, which the store has not. Raises StoreError."""
    copy = next((copy for copy in copies_of(stored) if copy.divided), None)
    if copy is not None and not _fits(copy, stored):
        raise StoreError(
            f"{stored.home / COPIES_FILE} divides the experts of {stored.name} otherwise than they are stored; pull "
            "the model again"
        )
    return copy


def _fits(copy: Copy, stored: StoredModel) -> bool:
    strides = strides_of(stored)
    as_many = stored.manifest.in_place is None and len(strides) == len(copy.first_bytes)
    return as_many and all(first < stride for first, stride in zip(copy.first_bytes, strides, strict=True))
