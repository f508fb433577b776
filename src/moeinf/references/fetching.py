"""How what a reference means becomes a model of the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from moeinf.config.pull_options import PullOptions
from moeinf.pull.events import PullProgress
from moeinf.pull.forms.form import Form
from moeinf.pull.pull import ensure, pull
from moeinf.references.foreign.adopting import adopt
from moeinf.references.meaning import Meaning
from moeinf.store.library import Library, StoredModel
from moeinf.store.naming.catalogue import KnownModel

Choose = Callable[[KnownModel, str, PullOptions], Form]  # of a model's forms the one to take; its name as asked for


def settled(found: Meaning, library: Library, choose: Choose, progress: PullProgress | None = None) -> Meaning:
    """With the form of a known model that its tag names, or that `choose` takes; itself where none is open.

    Raises ModelNotFoundError for a tag that there is not, with those that there are; HubError; what `choose` raises.
    """
    if found.known is None:
        return found
    if found.tag:
        from moeinf.pull.forms.published import form_of_tag  # loads the Hub's client, which takes 0.2 s

        form = form_of_tag(found.known, found.tag, found.options, library, progress)
    else:
        form = choose(found.known, found.reference, found.options)
    return replace(found, reference=form.reference, options=form.options)


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
    make = pull if again else ensure
    return make(found.reference, found.options, home=library.home, progress=progress)
