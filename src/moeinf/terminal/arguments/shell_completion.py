"""Names of models that a shell completes."""

from __future__ import annotations

from moeinf.config.environment import store_home
from moeinf.errors import MoeinfError
from moeinf.store.library import Library
from moeinf.store.naming.aliases import known_sources


def stored_names(incomplete: str) -> list[str]:
    """Of stored models, for verbs that need one. A store that cannot be read completes nothing."""
    try:
        names = [model.name.removesuffix(":latest") for model in Library(store_home()).list()]
    except (MoeinfError, OSError):
        return []
    return [name for name in names if name.lower().startswith(incomplete.lower())]


def model_names(incomplete: str) -> list[str]:
    """Stored ones, then those that `pull` knows."""
    stored = stored_names(incomplete)
    try:
        known = known_sources(store_home())
    except MoeinfError:
        return stored
    return stored + [name for name in known if name.startswith(incomplete.lower()) and name not in stored]
