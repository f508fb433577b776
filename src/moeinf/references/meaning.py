"""What a reference means: the one place that tells names, tags, paths, files of other programs and repositories apart.

Nothing is fetched, and the Hub is not asked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Literal

from moeinf.config.pull_options import NO_OPTIONS, PullOptions
from moeinf.errors import ModelNotFoundError, UsageError
from moeinf.pull.origins import Origin, is_here, resolve, stored_model, unfinished
from moeinf.pull.steps import free_bytes
from moeinf.references.foreign.foreign_model import ForeignModel
from moeinf.references.foreign.owners import foreign_model
from moeinf.references.stored_forms import stored_forms
from moeinf.store.files import errors_named
from moeinf.store.library import Library, StoredModel
from moeinf.store.manifest import SourceKind
from moeinf.store.naming.aliases import alias_of, own_aliases
from moeinf.store.naming.catalogue import KnownModel, known_form, known_model
from moeinf.store.naming.lookup import printable
from moeinf.store.naming.names import MOST_CHARS, outside_source, plain_name
from moeinf.store.quantisation import CHOICES, chosen
from moeinf.text.quantities import size_text

Kind = Literal["stored", "begun", "foreign", "here", "known", "published"]
_KINDS: Final[Mapping[SourceKind, Kind]] = {
    "folder": "here",
    "file": "here",
    "embedded": "published",
    "hub": "published",
}


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a reference means.

    kind: `stored`: a model of the store. `begun`: a pull that has not ended. `foreign`: a model of another program.
    `here`: a checkpoint or a GGUF file on this disk. `known`: a model of the catalogue, of which a form is to be
    chosen, or the one that `tag` names. `published`: a repository of the Hub, or what comes with moeinf.
    """

    kind: Kind
    asked: str  # the reference, as it was written
    reference: str  # the same, without a format as its tag; of a known model its name, as it was asked for
    options: PullOptions  # of a pull of it
    origin: Origin | None = None  # what such a pull takes; None where a form is to be chosen, and of a stored model
    stored: StoredModel | None = None
    several: tuple[StoredModel, ...] = ()  # stored forms of the known model, the best first, where there are several
    foreign: ForeignModel | None = None
    known: KnownModel | None = None
    tag: str = ""  # of a form of the known model; "" where that is left open

    @property
    def is_file(self) -> bool:
        """Whether it is a GGUF file of this disk, of which the store keeps an index alone."""
        if self.foreign is not None:
            return not self.foreign.is_checkpoint
        return self.kind == "here" and self.origin is not None and self.origin.source.kind == "file"

    @property
    def unstored(self) -> str:
        """What is said where only a stored model will do: what it means instead, and what stores it."""
        name = printable(self.asked)
        if self.several:
            return f"several forms of '{name}' are stored; name one: {', '.join(form.name for form in self.several)}"
        how = {"begun": "goes on with its pull", "here": "converts it"}.get(self.kind, "fetches it")
        if self.foreign is not None:
            how = f"takes the {size_text(self.foreign.num_bytes)} that {self.foreign.owner} has of it"
        return f"model '{name}' not found; `moeinf pull {name}` {how}"


def meaning(reference: str, options: PullOptions, library: Library) -> Meaning:
    """What a reference means, the first of these that it is: a path, a stored model, a pull that has not ended, a name
    of the user's own, a model of another program, one of the catalogue or a form of it, a name with a format as its
    tag, a repository of the Hub.

    options: of the pull that may follow. Other formats than the source's, an adapter or a revision leave other programs
    out, and mean the checkpoint of a known model.

    Raises ModelNotFoundError, which names those that are alike, or the models that OWNER:NAME may mean; UsageError for
    a model of another program that cannot be used, and damaged aliases; StoreError.
    """
    if len(reference) > MOST_CHARS:
        resolve(reference, library)  # raises
    name, outside = plain_name(reference), outside_source(reference)
    if outside is not None and outside.kind in ("folder", "file"):
        return Meaning("here", reference, reference, options, resolve(reference, library, options.revision))
    with errors_named(library.home):
        stored = None if options.lora is not None else stored_model(reference, library, chosen(options.quant))
        if stored is not None:
            return Meaning("stored", reference, reference, options, stored=stored)
        if unfinished(reference, library) is not None:
            return Meaning("begun", reference, reference, options, resolve(reference, library, options.revision))
    if alias_of(name) not in own_aliases(library.home):
        several = _several(reference, name, options, library)
        if several is not None:
            return several
        foreign = _foreign(name, library) if is_plain(options) else None
        if foreign is not None:
            return Meaning("foreign", reference, reference, options, foreign.origin, foreign=foreign)
        known = _catalogued(reference, name, options, library)
        if known is not None:
            return known
    return _named(reference, name, options, library)


def is_plain(options: PullOptions) -> bool:
    """Whether nothing is asked for but a model, by whatever name."""
    return replace(options, name=None, token=None, also=None, force=False, keep_source=False) == NO_OPTIONS


def stored(reference: str, library: Library) -> StoredModel:
    """The stored model that a reference means, for whoever may not pull.

    Raises as Library.find; where the reference means what could be pulled, the error says so. Of files of this machine
    it says nothing: they are none of a client's business.
    """
    try:
        return library.find(reference)
    except ModelNotFoundError as unknown:
        found = None
        with suppress(ModelNotFoundError, UsageError):
            found = meaning(reference, NO_OPTIONS, library)
        told = unknown if found is None or found.kind == "here" else ModelNotFoundError(found.unstored)
        raise told from None


def _foreign(reference: str, library: Library) -> ForeignModel | None:
    """Not a checkpoint that is larger than what is free of the disk, into which it is converted: a smaller form may
    do."""
    model = foreign_model(reference)
    too_large = model is not None and model.is_checkpoint and model.num_bytes > free_bytes(library.home)
    return None if too_large else model


def _several(reference: str, name: str, options: PullOptions, library: Library) -> Meaning | None:
    """A known model of which several forms are stored."""
    model = known_model(name)
    if model is None or model.checkpoint.kind != "hub" or options.name is not None or not is_plain(options):
        return None
    forms = stored_forms(model, library)
    if len(forms) < 2:
        return None
    return Meaning("known", reference, alias_of(name), options, known=model, several=forms)


def _catalogued(reference: str, name: str, options: PullOptions, library: Library) -> Meaning | None:
    """A model of the catalogue of which several forms are published, or one of them."""
    if options.quant is not None or options.revision is not None:
        return None
    model, form = known_model(name), known_form(name)
    if model is None:
        several = form is not None and form[0].checkpoint.kind == "hub"
        return Meaning("known", reference, name, options, known=form[0], tag=form[1]) if form and several else None
    if options.name is not None and is_here(options.name, library):
        held = resolve(options.name, library)
        if any(map(held.source.same_origin, model.sources)):  # then that form is brought up to date
            return Meaning("published", reference, reference, options, held)
        return None  # then the pull is refused, before any form is looked for
    if model.checkpoint.kind != "hub" or not is_plain(options) or _is_offline():
        return None  # without a network the Hub's cache is looked into, which has what it has
    return Meaning("known", reference, alias_of(name), options, known=model)


def _named(reference: str, name: str, options: PullOptions, library: Library) -> Meaning:
    """What `pull` means by it. A format that is a tag, as in `mine:q4_k`, is what its checkpoint is stored in."""
    word, _, tag = name.rpartition(":")
    if word and tag in CHOICES and "gguf" not in word.lower() and options.quant is None:
        try:
            origin = resolve(word, library, options.revision)
        except ModelNotFoundError:
            pass  # then the names are told that are like all of it
        else:
            return Meaning(_KINDS[origin.source.kind], reference, word, replace(options, quant=tag), origin)
    origin = resolve(reference, library, options.revision)
    return Meaning(_KINDS[origin.source.kind], reference, reference, options, origin)


def _is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")
