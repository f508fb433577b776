"""Model names: what a user means by one, and where such a model comes from."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, replace
from pathlib import Path

from moeinf.errors import ModelNotFoundError, StoreError
from moeinf.store.library import Library, StoredModel
from moeinf.store.manifest import ModelSource, SourceKind
from moeinf.store.naming.aliases import alias_of, aliases
from moeinf.store.naming.names import (
    DEFAULT_TAG,
    MOST_CHARS,
    address_source,
    default_name,
    has_tag,
    name_from,
    parse_name,
    plain_name,
    repository_source,
    revision_tag,
    written,
)
from moeinf.store.processes.partials import PulledAs, find_partials, parse_source_record
from moeinf.store.quantisation import KEEP, Quantisation


@dataclass(frozen=True, slots=True)
class Origin:
    """Something that can be pulled, and the name that it gets by default."""

    kind: SourceKind
    location: str  # org/repo, path, or name of the embedded model
    revision: str
    name: str
    quantisation: Quantisation = KEEP  # what a pull of it stores, where nothing else is asked for
    file: str = ""  # hub only: the tag or the name of a GGUF file in the repository
    repacked: bool = False  # a GGUF file, of which the store has a copy in files of its own

    @property
    def source(self) -> ModelSource:
        """The source, at the revision that was asked for."""
        return ModelSource(self.kind, self.location, self.revision, self.file)

    @property
    def locator(self) -> str:
        """Two pulls with the same locator, into the same formats, share one work folder."""
        return f"{self.kind}:{self.location}@{self.revision}" + (f":{self.file}" if self.file else "")


def origin_of(reference: str, library: Library) -> Origin:
    """Resolves a reference. Raises ModelNotFoundError, which names those that are alike.

    Order: a path, an address of the Hub, a stored name, an interrupted pull, an alias, org/repo[@revision].
    """
    if len(reference) > MOST_CHARS:
        raise ModelNotFoundError(f"{reference[:100]!r}... is too long for a model: {MOST_CHARS} characters at most")
    outside = outside_origin(reference)
    if outside is not None:
        return outside
    named_model = library.named(reference)
    if named_model is not None and not _goes_by_alias(reference, named_model, library.home):
        return stored_origin(named_model)
    begun = _begun(reference, library)
    named = partial_origin(begun[0]) if begun else named_origin(reference, library.home)
    if named is not None:
        return named
    stored = [model.name.removesuffix(":latest") for model in library.list()]
    close = difflib.get_close_matches(reference.lower(), {*stored, *known_sources(library.home)}, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(close)}?" if close else "give org/repo, the path of a folder, or a known name"
    shown = reference[:100] if reference.isprintable() else ascii(reference[:100])
    raise ModelNotFoundError(f"model '{shown}' not found; {hint} (`moeinf list --available` shows the names)")


def _goes_by_alias(reference: str, found: StoredModel, home: Path) -> bool:
    """Whether a pull of a known name was asked for, of which only another format is stored."""
    by_tag = not has_tag(reference) and not found.name.endswith(f":{DEFAULT_TAG}")
    return by_tag and alias_of(plain_name(reference)) in aliases(home)


def stored_model(reference: str, library: Library, wanted: Quantisation | None) -> StoredModel | None:
    """Returns the stored model that a reference means, in the wanted formats; None where it has to be pulled."""
    outside = outside_origin(reference)
    if outside is not None and outside.kind in ("folder", "file"):
        return None  # the pull finds it up to date, or converts what has changed
    try:
        if wanted is None:
            return library.find(reference)
        origin = origin_of(reference, library)
        model = library.find(variant_name(origin, wanted))
        return model if model.is_later(origin.source) else None  # the pull says whose it is
    except ModelNotFoundError:
        return None


def variant_name(origin: Origin, wanted: Quantisation, name: str | None = None) -> str:
    """Returns the name with the formats as its tag; without a tag if the source's formats are kept.

    A tag of the origin's own name that tells its revision stays. name: that the user gave, without a tag.
    """
    word, tag = parse_name(name or origin.name)
    revision = revision_tag(origin.revision)
    parts = [revision] if name is None and revision and f"{tag}-".startswith(f"{revision}-") else []
    parts += [] if wanted == KEEP else [wanted.tag]
    return f"{word}:{'-'.join(parts)}" if parts else word


def continues(reference: str, library: Library, wanted: Quantisation | None) -> bool:
    """Tells whether a pull would go on with an interrupted one, which is not running and makes the same formats."""
    begun = _begun(reference, library)
    return begun is not None and not begun[1] and wanted in (None, begun[0].quantisation)


def _begun(reference: str, library: Library) -> tuple[PulledAs, bool] | None:
    """Returns what an unfinished pull of this name was asked for, and whether it is running."""
    found = (partial for partial in find_partials(library.home) if partial.is_named(reference))
    return next(((partial.asked, partial.running) for partial in found if partial.asked), None)


def as_path(reference: str) -> Path | None:
    """Returns the absolute path that a reference means by its form, or as the name of a checkpoint folder here."""
    path = os.path.expanduser(reference)
    looks_so = reference in (".", "..", "~") or reference.startswith(("/", "./", "../", "~/"))
    on_the_hub = ":" in path or address_source(reference) is not None  # org/repo:FILE.gguf, or a page
    is_gguf = path.lower().endswith(".gguf") and (os.path.isfile(path) or not on_the_hub)
    if "\0" in reference or not (looks_so or is_gguf or os.path.isfile(os.path.join(path, "config.json"))):
        return None
    return Path(os.path.realpath(path))  # not Path.resolve, which raises for a loop of links


def outside_origin(reference: str) -> Origin | None:
    """Returns the origin for forms that go before stored names: paths and addresses of the Hub."""
    path = as_path(reference)
    if path is not None and path.suffix.lower() == ".gguf" and not path.is_dir():
        return Origin("file", str(path), "", name_from(path.stem))
    if path is not None:
        return Origin("folder", str(path), "", name_from(path.name))
    source = address_source(reference)
    return None if source is None else _hub_origin(source)


def stored_origin(model: StoredModel) -> Origin:
    """Returns what a stored model was made of, for an update.

    Where its manifest is damaged, the source record tells. Raises StoreError where that is missing, too.
    """
    try:
        source = model.manifest.source
    except StoreError as damaged:
        asked = parse_source_record(model.source_record())
        if asked is None:
            raise StoreError(f"{damaged}: `moeinf pull SOURCE --name {model.name}`, from where it came") from damaged
        return replace(partial_origin(asked), name=model.name)
    return Origin(
        source.kind,
        source.location,
        model.revision,
        model.name,
        model.manifest.quantisation,
        source.file,
        model.manifest.in_place is None and (source.kind == "file" or bool(source.file)),
    )


def partial_origin(asked: PulledAs) -> Origin:
    """Returns what an interrupted pull was of, to go on with it."""
    source = asked.source
    return Origin(source.kind, source.location, source.revision, asked.name, asked.quantisation, source.file)


def named_origin(reference: str, home: Path) -> Origin | None:
    """Returns the origin for forms that go after stored names: aliases, then org/repo[@revision].

    Raises UsageError for a file of aliases in `home` that is not sound.
    """
    name = plain_name(reference)
    alias = aliases(home).get(alias_of(name))
    if alias is None:
        repository = repository_source(name)
        return None if repository is None else _hub_origin(repository)
    return Origin(alias.kind, alias.location, alias.revision, name.lower(), file=alias.file)


def known_sources(home: Path) -> dict[str, str]:
    """Returns the aliases in order, and where each is pulled from: org/repo[:tag][@revision], or `embedded`.

    Raises UsageError as named_origin does.
    """
    known = sorted(aliases(home).items())
    return {name: "embedded" if source.kind == "embedded" else written(source) for name, source in known}


def full_name(name: str) -> str:
    """Completes a name that a user gave to `name:tag`. Raises UsageError."""
    return ":".join(parse_name(name))


def _hub_origin(source: ModelSource) -> Origin:
    return Origin("hub", source.location, source.revision, default_name(source), file=source.file)
