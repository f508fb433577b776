"""Finds the model that a person has named, which has to be stored."""

from __future__ import annotations

from moeinf.config.environment import store_home
from moeinf.config.pull_options import NO_OPTIONS
from moeinf.errors import ModelNotFoundError
from moeinf.references.meaning import meaning
from moeinf.store.library import Library, StoredModel


def find_stored(name: str) -> StoredModel:
    """The stored model of this name, or of this GGUF file, also of one that another program has.

    Raises ModelNotFoundError, which says what stores one that is not, or which names are alike.
    """
    found = meaning(name, NO_OPTIONS, Library(store_home()))
    if found.stored is not None:
        return found.stored
    if not found.is_file:
        raise ModelNotFoundError(found.unstored)
    from moeinf.terminal.session_opening import ensure_stored  # loads tokenizers

    return ensure_stored(name, quiet=found.foreign is None)
