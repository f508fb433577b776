"""The stored forms of a known model, of which its name alone may mean each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from moeinf.errors import StoreError
from moeinf.pull.forms.form import rank_of
from moeinf.store.library import Library, StoredModel
from moeinf.store.naming.catalogue import KnownModel, known_form, known_model
from moeinf.store.naming.names import mtp_name


def stored_forms(model: KnownModel, library: Library) -> tuple[StoredModel, ...]:
    """Those under names of the catalogue, the best first by the rule of published forms. None that is damaged."""
    ranked = []
    held = library.list()
    layers = {mtp_name(stored.name) for stored in held}  # they run with their models alone
    for stored in held:
        form = known_form(stored.name)
        if stored.name in layers or model is not (form[0] if form else known_model(stored.name)):
            continue
        with suppress(StoreError):
            if any(map(stored.manifest.source.same_origin, model.sources)):
                ranked.append((rank_of(bits_of(stored), stored.size_bytes), stored))
    return tuple(stored for _, stored in sorted(ranked, key=lambda each: each[0], reverse=True))


def bits_of(stored: StoredModel) -> float:
    """Of a weight, in the mean. Raises StoreError."""
    return 8 * stored.size_bytes / stored.manifest.info.num_params


def usual_of(asked: str, forms: Sequence[StoredModel], tell: Callable[[str], None]) -> StoredModel:
    """Of several stored forms, for whoever is not asked: the best. tell: takes a line that says so."""
    others = ", ".join(form.name for form in forms[1:])
    tell(f"taking {forms[0].name}, the best of the forms of {asked} that are stored; the others are {others}")
    return forms[0]
