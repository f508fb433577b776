"""Which files of a repository make up the model that a tag means."""

from __future__ import annotations

import re
from collections.abc import Collection

from moeinf.errors import CheckpointError

PREFERRED = "q4_k_m"  # where no tag is given, as with ollama
_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_OTHERS = re.compile(r"(^|[-_./])(mmproj|imatrix|mtp)[-_.]", re.IGNORECASE)  # beside a model: no models


def model_files(names: Collection[str]) -> dict[str, str]:
    """The first file of each GGUF model, by what tells it from the others: its name without ending, in lower case."""
    found = {}
    for name in sorted(names):
        split = _SPLIT.fullmatch(name)
        if not name.lower().endswith(".gguf") or _OTHERS.search(name) or (split and int(split[2]) != 1):
            continue
        found[(split[1] if split else name[: -len(".gguf")]).lower()] = name
    return found


def choose(names: Collection[str], tag: str, where: str) -> str:
    """The first file of the model that a tag means: its quantisation, or the file itself; "" for the usual one.

    Raises CheckpointError, which names the tags that there are.
    """
    models = model_files(names)
    if tag in models.values():
        return tag
    wanted = (tag or PREFERRED).lower().removesuffix(".gguf")
    exact = [file for stem, file in models.items() if stem.rpartition("/")[2] == wanted or stem == wanted]
    fits = exact or [file for stem, file in models.items() if stem.endswith((f"-{wanted}", f".{wanted}", f"_{wanted}"))]
    if not tag and not fits and len(models) == 1:
        return next(iter(models.values()))
    if len(fits) == 1:
        return fits[0]
    known = ", ".join(tags_of(models)) or "none"
    if not fits:
        fault = f"has no GGUF file of the tag {tag[:50]!r}" if tag else "has several GGUF files, none of them Q4_K_M"
        raise CheckpointError(f"{where} {fault}; say which, as in {where}:TAG (tags are {known})")
    raise CheckpointError(f"{where} has several GGUF files of the tag {tag or PREFERRED!r}: {', '.join(sorted(fits))}")


def tags_of(models: dict[str, str]) -> list[str]:
    """What tells the files of a repository apart: their names behind what all of them begin with."""
    stems = [stem.rpartition("/")[2] for stem in models]
    if len(stems) < 2:
        return [stem.upper() for stem in stems]
    common = stems[0]
    for stem in stems[1:]:
        while not stem.startswith(common):
            common = common[:-1]
    cut = max(common.rfind("-"), common.rfind(".")) + 1
    return sorted(stem[cut:].upper() for stem in stems)
