"""Short names of models that can be pulled: those that come with moeinf, and the user's own, which go first."""

from __future__ import annotations

from pathlib import Path

from moeinf.config.user_text import decoded
from moeinf.errors import UsageError
from moeinf.store.files import parse_json_object, read_small
from moeinf.store.manifest import ModelSource
from moeinf.store.naming.catalogue import catalogue
from moeinf.store.naming.names import DEFAULT_TAG, address_source, parse_name, repository_source, written

ALIAS_FILE = "aliases.json"  # in the store's folder: the user's own names


def alias_of(name: str) -> str:
    """The form in which aliases has a name."""
    return name.lower().removesuffix(f":{DEFAULT_TAG}")


def aliases(home: Path) -> dict[str, ModelSource]:
    """What each name means. Raises UsageError for a file in `home` that is not sound."""
    return {name: model.checkpoint for name, model in catalogue().items()} | own_aliases(home)


def known_sources(home: Path) -> dict[str, str]:
    """Returns the aliases in order, and where each is pulled from: org/repo[:tag][@revision], or `embedded`.

    Raises UsageError for a file of aliases in `home` that is not sound.
    """
    known = sorted(aliases(home).items())
    return {name: "embedded" if source.kind == "embedded" else written(source) for name, source in known}


def own_aliases(home: Path) -> dict[str, ModelSource]:
    """The user's names: {"small": "org/repo@commit"}. Raises UsageError for what is no name, or no repository."""
    path = home / ALIAS_FILE
    try:
        given = parse_json_object(decoded(read_small(path, 1 << 20)).encode(), str(path), UsageError)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; make it readable, or delete it") from error
    found = {}
    for name, reference in given.items():
        if "/" in parse_name(name)[0]:
            raise UsageError(f"{path}: {name[:100]!r} is no name of a model without NAMESPACE/")
        source = address_source(reference) or repository_source(reference) if isinstance(reference, str) else None
        if source is None:
            raise UsageError(f'{path}: {name!r} is no org/repo[:tag][@revision]: write "name": "org/repo@commit"')
        found[alias_of(name)] = source
    return found
