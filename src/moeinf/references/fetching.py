"""How what a reference means becomes a model of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from moeinf.config.pull_options import PullOptions
from moeinf.errors import UnreachableError
from moeinf.pull.events import PullProgress
from moeinf.pull.forms.form import Form
from moeinf.pull.origins import Origin, resolve
from moeinf.pull.pull import ensure, pull
from moeinf.references.foreign.adopting import adopt
from moeinf.references.foreign.owners import foreign_models
from moeinf.references.meaning import Meaning
from moeinf.store.library import Library, StoredModel
from moeinf.store.naming.catalogue import KnownModel
from moeinf.store.naming.names import DEFAULT_TAG

_MOST_NAMED: Final = 12
Choose = Callable[[KnownModel, str, PullOptions], Form]  # of a model's forms the one to take; its name as asked for


def settled(found: Meaning, library: Library, choose: Choose, progress: PullProgress | None = None) -> Meaning:
    """With the form of a known model that its tag names, or that `choose` takes; itself where none is open.

    Raises ModelNotFoundError for a tag that there is not, with those that there are; HubError; what `choose` raises.
    """
    if found.known is None:
        return found
    with told_what_is_here(library):
        if found.tag:
            from moeinf.pull.forms.published import form_of_tag  # loads the Hub's client, which takes 0.2 s

            form = form_of_tag(found.known, found.tag, found.options, library, progress)
        else:
            form = choose(found.known, found.reference, found.options)
    return replace(found, options=form.options, origin=form.origin)


def fetch(
    found: Meaning, library: Library, progress: PullProgress | None = None, *, again: bool = False
) -> StoredModel:
    """The stored model, which is made where there is none. found: settled. again: brings a stored one up to date.

    Raises what a pull raises.
    """
    if found.foreign is not None:
        return adopt(found.foreign, found.options, library, progress)
    if found.stored is not None and not again:
        return found.stored
    with told_what_is_here(library):
        if again:
            return pull(origin_of(found, library), found.options, home=library.home, progress=progress)
        return ensure(
            found.reference, found.options, home=library.home, progress=progress, origin=origin_of(found, library)
        )


def origin_of(found: Meaning, library: Library) -> Origin:
    """What a pull of it takes; of a stored model what it was made of. found: settled. Raises StoreError."""
    return found.origin or resolve(found.reference, library, found.options.revision)


@contextmanager
def told_what_is_here(library: Library) -> Iterator[None]:
    """Where the Hub is out of reach inside, the error names the models that need no network."""
    try:
        yield
    except UnreachableError as error:
        stored = [model.name.removesuffix(f":{DEFAULT_TAG}") for model in library.list()]
        others = [f"{model.owner}:{model.own_name}" for model in foreign_models() if not model.fault]
        here = [*stored, *others]
        more = f" and {len(here) - _MOST_NAMED} more (`moeinf list`)" if len(here) > _MOST_NAMED else ""
        named = f"; models that are here: {', '.join(here[:_MOST_NAMED])}{more}" if here else ""
        raise UnreachableError(f"{error}{named}") from error
