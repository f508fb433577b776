"""Finds the model that a person has named, which has to be stored."""

from __future__ import annotations

from moeinf.config.environment import store_home
from moeinf.errors import ModelNotFoundError
from moeinf.store.library import Library, StoredModel
from moeinf.store.naming.aliases import alias_of, known_sources
from moeinf.store.naming.names import outside_source, plain_name


def find_stored(name: str) -> StoredModel:
    """The stored model of this name, or of this GGUF file.

    Raises ModelNotFoundError, which says how to fetch one that is known.
    """
    outside = outside_source(name)
    if outside is not None and outside.kind == "file":
        from moeinf.terminal.session_opening import ensure_stored  # loads tokenizers

        return ensure_stored(name, quiet=True)
    try:
        return Library(store_home()).find(name)
    except ModelNotFoundError:
        from moeinf.foreign.owners import foreign_model  # what few commands need
        from moeinf.pull.gguf.known_files import known_model

        foreign = foreign_model(name)
        known = None if foreign is None else known_model(foreign.path, Library(store_home()))
        if known is not None:
            return known
        if alias_of(plain_name(name)) in known_sources(store_home()):
            raise ModelNotFoundError(f"model '{name}' is not stored; `moeinf pull {name}` fetches it") from None
        raise
