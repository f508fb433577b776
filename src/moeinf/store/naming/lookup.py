"""Which stored name is meant by what a person or a client writes, and what is said where none is."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from moeinf.errors import ModelNotFoundError, UsageError
from moeinf.store.manifest import ModelSource
from moeinf.store.naming.aliases import alias_of
from moeinf.store.naming.catalogue import known_form, known_model
from moeinf.store.naming.name_files import NameFiles
from moeinf.store.naming.names import DEFAULT_TAG, MOST_CHARS, has_tag, meant, mtp_name, parse_name


def stored_name(
    reference: str,
    names: NameFiles,
    aliases: Callable[[], Mapping[str, ModelSource]],
    is_other: Callable[[str, ModelSource], bool],
) -> str | None:
    """The full name under which a model is stored, also where it is damaged, that a reference means.

    A name may have other capitals, and lack its tag, where one model alone can be meant; a reference without a tag that
    is an alias means no model of other weights. is_other: whether a name's model is not of this source, or is damaged.

    Raises ModelNotFoundError for what is neither a name nor a source; StoreError where the disk refuses to tell.
    """
    try:
        found = names.find(reference) or _of_known_model(reference, names, is_other)
    except UsageError as error:
        if len(reference) <= MOST_CHARS and ("/" in reference or "@" in reference):  # a source
            return None
        raise ModelNotFoundError(str(error)) from error
    if len(found) != 1:
        return None
    [name] = found
    if has_tag(reference) or name.endswith(f":{DEFAULT_TAG}"):
        return name
    known = aliases().get(alias_of(parse_name(reference)[0]))
    return None if known is not None and is_other(name, known) else name


def _of_known_model(reference: str, names: NameFiles, is_other: Callable[[str, ModelSource], bool]) -> list[str]:
    """The full names of the forms of a known model that are stored under other names than this one of it."""
    form, model = known_form(reference), known_model(reference)
    if form is not None:
        found, model = names.find(form[0].form_name(form[1])), form[0]
    elif model is not None:
        held = names.all({})
        layers = set(map(mtp_name, held))  # which run with their models alone
        others = ((name, known_form(name)) for name in held if name not in layers)
        found = [name for name, other in others if known_model(name) is model or (other and other[0] is model)]
    else:
        return []
    return [name for name in found if not is_other(name, model.checkpoint)]


def not_found(reference: str, names: Collection[str]) -> ModelNotFoundError:
    """The error for a reference that means no stored model, with the names that are alike."""
    several = list[str]()
    with suppress(UsageError):
        several = meant(reference, names)[:3]
    shown = [name.removesuffix(f":{DEFAULT_TAG}") for name in several or names]
    close = shown if several else difflib.get_close_matches(reference, shown, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(close)}?" if close else "see `moeinf list`"
    return ModelNotFoundError(f"model '{printable(reference)}' not found; {hint} (`moeinf pull` fetches a model)")


def printable(reference: str) -> str:
    """What an error says of a reference: its beginning, without what a terminal would obey."""
    return reference[:100] if reference.isprintable() else ascii(reference[:100])
