"""All models of other programs on this disk, and the one that a reference means."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from moeinf.config.environment import foreign_wanted
from moeinf.errors import ModelNotFoundError, UsageError
from moeinf.references.foreign.file_caches import hub_models, llama_cpp_models, lm_studio_models
from moeinf.references.foreign.foreign_model import ForeignModel
from moeinf.references.foreign.ollama import ollama_models

_OWNERS: Final[Mapping[str, Callable[[Mapping[str, str], Path], Iterator[ForeignModel]]]] = {
    "ollama": ollama_models,
    "lmstudio": lm_studio_models,
    "llama.cpp": llama_cpp_models,
    "hub": hub_models,
}


def foreign_models() -> list[ForeignModel]:
    """Those of this user, by their owners; also those that cannot be used. [] where MOEINF_FOREIGN=0 wants none.

    A folder that cannot be read has none.
    """
    if not foreign_wanted():
        return []
    found = list[ForeignModel]()
    for models in _OWNERS.values():
        try:
            found += models(os.environ, Path.home())
        except (OSError, RuntimeError):  # no such folder any more, not ours to read, or no home
            continue
    return found


def foreign_model(reference: str) -> ForeignModel | None:
    """The model of another program that a reference means: of several a GGUF file, then the largest.

    Raises UsageError for one that cannot be used, and ModelNotFoundError for OWNER:NAME that there is not.
    """
    found = [model for model in foreign_models() if model.is_meant(reference)]
    sound = [model for model in found if not model.fault]
    if found and not sound:
        raise UsageError(f"{found[0].owner}'s {found[0].name} cannot be used: {found[0].fault}")
    if sound:
        return max(sound, key=lambda model: (not model.is_checkpoint, model.num_bytes))
    owner, colon, name = reference.partition(":")
    if colon and owner in _OWNERS and foreign_wanted():
        there = [f"{owner}:{model.own_name}" for model in foreign_models() if model.owner == owner]
        raise ModelNotFoundError(f"{owner} has no model {name!r:.100} here; it has {', '.join(there) or 'none'}")
    return None
