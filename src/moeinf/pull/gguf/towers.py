"""Which mmproj file lets a GGUF model see: the one that was named, else one that lies beside it and fits."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import takewhile

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.gguf.gguf_vision import may_see
from moeinf.gguf.header import Gguf
from moeinf.pull.gguf.index import check_runs

NONE = "none"  # in place of a file: text alone
_TOWER = re.compile(r"(^|[-_.])mmproj([-_.])", re.IGNORECASE)
_TYPES = ("bf16", "f16", "f32", "q8_0")  # the first of these, as towers are published in bf16


def candidates(names: Collection[str], model: str) -> list[str]:
    """The mmproj files among the names of a folder, the likeliest of a model first.

    They begin as the model's name does, but for the word; or they all have plain names.
    """

    def order(name: str) -> tuple[int, int, str]:
        plain = name.lower()
        kind = next((i for i, each in enumerate(_TYPES) if each in plain), len(_TYPES))
        pairs = zip(_TOWER.sub("", plain), model.lower(), strict=False)
        return -sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)), kind, name

    found = [name for name in names if name.lower().endswith(".gguf") and _TOWER.search(name)]
    return sorted(found, key=order)


def with_tower(
    gguf: Gguf, asked: str | None, names: Collection[str], read: Callable[[str], Gguf], note: Callable[[str], None]
) -> tuple[Gguf, str]:
    """The model with its tower, and the name of that file; without one "".

    asked: a file's name, NONE, or None for one of `names`, which lie beside the model. read: the header of a file.
    Raises CheckpointError or UnsupportedModelError for one that was asked for and is none of this model.
    """
    if asked == NONE or (asked is None and not may_see(gguf)):
        return gguf, ""
    if asked is not None:
        return _attached(gguf, read(asked)), asked
    faults: list[str] = []
    for name in candidates(names, gguf.files[0].path.name):
        try:
            found = _attached(gguf, read(name))
        except (CheckpointError, UnsupportedModelError) as error:
            faults.append(str(error))
            continue
        note(f"pictures are seen by {name}, which lies beside the model")
        return found, name
    if faults:
        note(f"takes text alone: {faults[0]}")
    return gguf, ""


def _attached(gguf: Gguf, mmproj: Gguf) -> Gguf:
    found = replace(gguf, mmproj=mmproj)
    check_runs(found)
    return found
