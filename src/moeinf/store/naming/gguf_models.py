"""Which GGUF models files are, by their names."""

from __future__ import annotations

import re
from collections.abc import Collection

_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_OTHERS = re.compile(r"(^|[-_./])(mmproj|imatrix|mtp)[-_.]", re.IGNORECASE)  # beside a model: no models
_PIECE = re.compile(r"(.*\.gguf)[-._](part[-_]?\d+([-_]?of[-_]?\d+)?|split[-_][a-z0-9]+)", re.IGNORECASE)


def model_files(names: Collection[str]) -> dict[str, str]:
    """The first file of each GGUF model, by what tells it from the others: its name without ending, in lower case."""
    found = {}
    for name in sorted(names):
        split = _SPLIT.fullmatch(name)
        if not name.lower().endswith(".gguf") or _OTHERS.search(name) or (split and int(split[2]) != 1):
            continue
        found[(split[1] if split else name[: -len(".gguf")]).lower()] = name
    return found


def whole_of(piece: str) -> str:
    """The name of the file that a piece was cut from, which is no part of a split; "" for what is no piece."""
    found = _PIECE.fullmatch(piece)
    return found[1] if found else ""


def join_them(whole: str) -> str:
    """What is to be done with pieces of a file of this name."""
    return (
        f"it was cut into pieces, which no program reads: join them in order, as in `cat $(ls -v {whole}?*) > {whole}`"
    )
