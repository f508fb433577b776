"""Where a model comes from: what a name, a path or a reference to the Hub means to a pull."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from moeinf.errors import ModelNotFoundError, StoreError, UsageError
from moeinf.store.files import errors_named
from moeinf.store.library import Library, StoredModel
from moeinf.store.manifest import ModelSource
from moeinf.store.naming.aliases import alias_of, aliases, known_sources
from moeinf.store.naming.lookup import printable
from moeinf.store.naming.names import (
    DEFAULT_TAG,
    MOST_CHARS,
    asked_revision,
    default_name,
    full_name,
    has_tag,
    meant,
    name_from,
    outside_source,
    parse_name,
    plain_name,
    repository_source,
    revision_tag,
)
from moeinf.store.processes.partials import PulledAs, find_partials, parse_source_record
from moeinf.store.quantisation import KEEP, Quantisation

_ADAPTER_CHARS = 48  # of an adapter's name, in a tag
_LEAST_BEGINNING = 3  # letters by which a name may be known


@dataclass(frozen=True, slots=True)
class Origin:
    """Something that can be pulled, and the name that it gets by default."""

    source: ModelSource  # at the revision that was asked for; its file: the tag or the name of a GGUF file
    name: str
    quantisation: Quantisation = KEEP  # what a pull of it stores, where nothing else is asked for
    repacked: bool = False  # a GGUF file, of which the store has a copy in files of its own
    adapter: ModelSource | None = None  # a LoRA adapter that is merged into the weights
    template: str = ""  # of chats, for a GGUF file that has none itself

    @property
    def locator(self) -> str:
        """Two pulls with the same locator, into the same formats, share one work folder."""
        source = self.source
        file, adapter = f":{source.file}" if source.file else "", self.adapter
        merged = f" with {adapter.kind}:{adapter.location}@{adapter.revision}" if adapter else ""
        return f"{source.kind}:{source.location}@{source.revision}{file}{merged}"

    def at(self, revision: str) -> Origin:
        """At another revision, with a name of its own where it had its source's."""
        source = replace(self.source, revision=asked_revision(revision))
        own = full_name(self.name) != full_name(default_name(self.source))
        return replace(self, source=source, name=self.name if own else default_name(source))

    def variant_name(self, wanted: Quantisation, name: str | None = None) -> str:
        """Its name with adapter and formats as its tag; without a tag if there is neither.

        A tag of its own name that tells its revision stays, and one that tells its file of the Hub. name: that the user
        gave, without a tag, and that says enough of an adapter.
        """
        word, tag = parse_name(name or self.name)
        revision = revision_tag(self.source.revision)
        parts = [revision] if name is None and revision and f"{tag}-".startswith(f"{revision}-") else []
        of_file = parse_name(default_name(self.source))[1]
        parts = [of_file] if name is None and self.source.file and of_file != DEFAULT_TAG else parts
        parts += [_adapter_name(self.adapter)] if self.adapter and name is None else []
        parts += [] if wanted == KEEP else [wanted.tag]
        return f"{word}:{'-'.join(parts)}" if parts else word


def _adapter_name(adapter: ModelSource) -> str:
    """Of a file without its ending."""
    return name_from(adapter.location).removesuffix(".gguf")[:_ADAPTER_CHARS]


def resolve(reference: str, library: Library, revision: str | None = None) -> Origin:
    """What a reference means, the first of these that it is: a path, an address of the Hub, a stored name, an
    interrupted pull, an alias, a repository of the Hub.

    revision: that is asked for beside the reference. Raises ModelNotFoundError,
    which names those that are alike; UsageError for a revision of what has none, and for damaged aliases.
    """
    if len(reference) > MOST_CHARS:
        raise ModelNotFoundError(f"{reference[:100]!r}... is too long for a model: {MOST_CHARS} characters at most")
    origin = next((found for look_up in _MEANINGS if (found := look_up(reference, library)) is not None), None)
    if origin is None:
        raise _unknown(reference, library)
    if revision is None:
        return origin
    if origin.source.kind != "hub":
        raise UsageError(f"--revision is for repositories of the Hub; {reference[:100]!r} is none")
    return origin.at(revision)


def _outside(reference: str, library: Library) -> Origin | None:
    source = outside_source(reference)
    return None if source is None else Origin(source, default_name(source))


def _stored(reference: str, library: Library) -> Origin | None:
    """What a stored model was made of, for an update; not that of an alias of which only another format is stored.

    Where its manifest is damaged, the source record tells. Raises StoreError where that is missing, too.
    """
    model = library.named(reference)
    if model is None:
        return None
    by_tag = not has_tag(reference) and not model.name.endswith(f":{DEFAULT_TAG}")
    if by_tag and alias_of(plain_name(reference)) in aliases(library.home):
        return None
    try:
        manifest = model.manifest
    except StoreError as damaged:
        asked = parse_source_record(model.source_record())
        if asked is None:
            raise StoreError(f"{damaged}: `moeinf pull SOURCE --name {model.name}`, from where it came") from damaged
        return Origin(asked.source, model.name, asked.quantisation, adapter=asked.adapter)
    source, asked = replace(manifest.source, revision=model.revision), parse_source_record(model.source_record())
    repacked = manifest.in_place is None and (source.kind == "file" or bool(source.file))
    return Origin(source, model.name, manifest.formats.asked, repacked, asked.adapter if asked else None)


def _begun(reference: str, library: Library) -> Origin | None:
    """What an interrupted pull of this name was of, to go on with it."""
    begun = unfinished(reference, library)
    if begun is None:
        return None
    asked, _ = begun
    return Origin(asked.source, asked.name, asked.quantisation, adapter=asked.adapter)


def _known(reference: str, library: Library) -> Origin | None:
    """An alias, or a repository of the Hub. Raises UsageError for a file of aliases that is not sound."""
    name = plain_name(reference)
    alias = aliases(library.home).get(alias_of(name))
    if alias is not None:
        return Origin(alias, name.lower())
    repository = repository_source(name)
    return None if repository is None else Origin(repository, default_name(repository))


_MEANINGS: tuple[Callable[[str, Library], Origin | None], ...] = (_outside, _stored, _begun, _known)


def _unknown(reference: str, library: Library) -> ModelNotFoundError:
    """Names the stored models that it may mean, else those whose names begin so, else those that are nearly called
    so."""
    held, several = [model.name for model in library.list()], list[str]()
    with suppress(UsageError):
        several = meant(reference, held)[:3]
    names = {*_short(held), *known_sources(library.home)}
    wanted = reference.lower().partition(":")[0]
    long_enough = len(wanted) >= _LEAST_BEGINNING
    alike = [name for name in names if long_enough and name.startswith(wanted)]
    close = sorted(alike, key=lambda name: (name.partition(":")[0] != wanted, -_likeness(name, reference), name))[:3]
    close = _short(several) or close or difflib.get_close_matches(reference.lower(), names, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(close)}?" if close else "give org/repo, the path of a folder, or a known name"
    return ModelNotFoundError(
        f"model '{printable(reference)}' not found; {hint} (`moeinf list --available` shows the names)"
    )


def _short(names: Iterable[str]) -> list[str]:
    return [name.removesuffix(f":{DEFAULT_TAG}") for name in names]


def _likeness(name: str, reference: str) -> float:
    return difflib.SequenceMatcher(None, name, reference.lower()).ratio()


def stored_model(
    reference: str, library: Library, wanted: Quantisation | None, adapter: ModelSource | None = None
) -> StoredModel | None:
    """Returns the stored model that a reference means, in the wanted formats and with an adapter; None where it has to
    be pulled.
    """
    outside = outside_source(reference)
    if outside is not None and outside.kind in ("folder", "file"):
        return None  # the pull finds it up to date, or converts what has changed
    try:
        if wanted is None and adapter is None:
            return library.find(reference)
        origin = resolve(reference, library)
        if adapter is not None:
            origin = replace(origin, adapter=adapter)
        model = library.find(origin.variant_name(wanted or origin.quantisation))
        asked = parse_source_record(model.source_record())
        if (asked.adapter if asked else None) != origin.adapter:
            return None
        return model if model.is_later(origin.source) else None  # the pull says whose it is
    except ModelNotFoundError:
        return None


def is_here(reference: str, library: Library) -> bool:
    """Tells whether a reference means a stored model, or one whose pull is under way or was interrupted."""
    with errors_named(library.home):
        return stored_model(reference, library, None) is not None or unfinished(reference, library) is not None


def continues(reference: str, library: Library, wanted: Quantisation | None) -> bool:
    """Tells whether a pull would go on with an interrupted one, which is not running and makes the same formats."""
    begun = unfinished(reference, library)
    return begun is not None and not begun[1] and wanted in (None, begun[0].quantisation)


def unfinished(reference: str, library: Library) -> tuple[PulledAs, bool] | None:
    """Returns what an unfinished pull of this name was asked for, and whether it is running."""
    found = (partial for partial in find_partials(library.home) if partial.is_named(reference))
    return next(((partial.asked, partial.running) for partial in found if partial.asked), None)
