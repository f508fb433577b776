"""What a store knows of GGUF files of this machine: the models made of them, and the names that those have."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from pathlib import Path

from moeinf.errors import CheckpointError, StoreError
from moeinf.store.format import MERGED_FILE
from moeinf.store.library import Library, StoredModel
from moeinf.store.manifest import ModelSource
from moeinf.store.naming.names import name_from
from moeinf.store.placed.verify_placed import changed_file, file_faults, is_unchecked

_SPLIT = re.compile(r"-\d{5}-of-\d{5}$")


def file_model_name(path: Path) -> str:
    """The name that a file's model gets by default."""
    return name_from(_SPLIT.sub("", path.name[: -len(".gguf")] if path.name.lower().endswith(".gguf") else path.name))


def known_model(path: Path, library: Library) -> StoredModel | None:
    """The model that was made of this file, or of another part of its split, if it still is what it was then."""
    for model in library.list():
        with suppress(StoreError):
            in_place, source = model.manifest.in_place, model.manifest.source
            if source.kind != "file" or in_place is None or path not in in_place.paths(model.path) or in_place.merged:
                continue
            changed = changed_file(in_place, model.path, samples=is_unchecked(model))
            if path != in_place.tower_path(model.path) and not changed:
                return model
    return None


def given_template(path: Path, library: Library) -> str:
    """The chat template that the known model of a file was given beside it; "" where there is none."""
    known = known_model(path, library)
    return "" if known is None else known.source_record().get("template", "")


def refuse_mixture(path: Path, library: Library) -> None:
    """Raises CheckpointError where some parts of a split are what they were when a model was made, and others are not.

    Parts of models of one architecture have the same headers, so nothing in a file tells that it is another model's.
    """
    for model in library.list():
        with suppress(StoreError):
            in_place, source = model.manifest.in_place, model.manifest.source
            if source.kind != "file" or in_place is None or path not in in_place.paths(model.path):
                continue
            tower, own = in_place.tower_path(model.path), model.path / MERGED_FILE
            parts = zip(in_place.paths(model.path), file_faults(in_place, model.path, samples=True), strict=True)
            faults = [fault for part, fault in parts if part not in (tower, own) and part.exists()]
            changed = [fault for fault in faults if fault]
            if changed and len(changed) < len(faults):
                raise CheckpointError(
                    f"{changed[0]}, and other parts are what they were when {model.name} was made: it is "
                    "another model's part, or damaged; put it back, or take all as they are after "
                    f"`moeinf rm {model.name}`"
                )


def free_name(first: Path, source: ModelSource, library: Library, *, repacked: bool) -> str:
    """A name for the model of a file that no other model has."""
    name = f"{file_model_name(first)}:{'repacked' if repacked else 'latest'}"
    held = _holder(name, library)
    if held is None or held.manifest.source.same_origin(source) or _is_stale(held):
        return name
    word, _, tag = name.partition(":")
    return f"{word[:73]}-{hashlib.sha256(str(first).encode()).hexdigest()[:6]}:{tag}"


def forget_stale(name: str, source: ModelSource, library: Library) -> None:
    """A file that has moved leaves an index behind, whose name is free again."""
    held = _holder(name, library)
    if held is not None and not held.manifest.source.same_origin(source) and _is_stale(held):
        library.remove(name)


def _holder(name: str, library: Library) -> StoredModel | None:
    found = [model for model in library.list() if model.name == name]
    with suppress(StoreError):
        _ = [model.manifest for model in found]
        return found[0] if found else None
    return None


def _is_stale(model: StoredModel) -> bool:
    source, in_place = model.manifest.source, model.manifest.in_place
    if source.kind != "file" or in_place is None:
        return False
    return changed_file(in_place, model.path, samples=is_unchecked(model)) != ""
