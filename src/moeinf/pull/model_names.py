"""Model names: what a user means by one, and where such a model comes from."""

from __future__ import annotations

import difflib
import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from moeinf.errors import ModelNotFoundError, StoreError, UsageError
from moeinf.store.files import parse_json_object, read_small
from moeinf.store.library import Library, StoredModel
from moeinf.store.manifest import ModelSource, SourceKind
from moeinf.store.names import name_from, parse_name
from moeinf.store.partials import PulledAs, find_partials, parse_source_record
from moeinf.store.quantisation import KEEP, Quantisation

DATA = Path(__file__).parents[1] / "data"
ALIAS_FILE = "aliases.json"  # in the store's folder: the user's own names
_HUB_PREFIX = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/|hf://", re.IGNORECASE)
_REPO = re.compile(r"([^/\s@:]+/[^/\s@:]+)(?::([^/\s@:]+))?(?:@(\S+))?")
_GGUF_PAGE = re.compile(r"([^/\s@:]+/[^/\s@:]+)/(?:blob|resolve)/([^/\s]+)/(\S+\.gguf)(?:\?\S*)?", re.IGNORECASE)


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
    outside = outside_origin(reference)
    if outside is not None:
        return outside
    try:
        if "/" not in reference:
            return stored_origin(library.find(reference))
    except ModelNotFoundError:
        pass
    begun = _begun(reference, library)
    named = partial_origin(begun[0]) if begun else named_origin(reference, library.home)
    if named is not None:
        return named
    stored = [model.name.removesuffix(":latest") for model in library.list()]
    close = difflib.get_close_matches(reference, {*stored, *known_sources(library.home)}, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(close)}?" if close else "give org/repo, the path of a folder, or a known name"
    shown = reference[:100] if reference.isprintable() else ascii(reference[:100])
    raise ModelNotFoundError(f"model '{shown}' not found; {hint} (`moeinf list --available` shows the names)")


def stored_model(reference: str, library: Library, wanted: Quantisation | None) -> StoredModel | None:
    """Returns the stored model that a reference means, in the wanted formats; None where it has to be pulled."""
    outside = outside_origin(reference)
    if outside is not None and outside.kind in ("folder", "file"):
        return None  # the pull finds it up to date, or converts what has changed
    name = reference
    if outside is not None:
        name = outside.location + (f":{outside.file}" if outside.file else "")
        name = f"{name}@{outside.revision}" if outside.revision else name
    try:
        if wanted is None:
            return library.find(name)
        origin = origin_of(reference, library)
        model = library.find(variant_name(origin.name, wanted))
        return model if model.manifest.source.same_origin(origin.source) else None  # the pull says whose it is
    except ModelNotFoundError:
        return None


def variant_name(name: str, wanted: Quantisation) -> str:
    """Returns the name with the formats as its tag; without a tag if the source's formats are kept."""
    word, _ = parse_name(name)
    return word if wanted == KEEP else f"{word}:{wanted.tag}"


def continues(reference: str, library: Library, wanted: Quantisation | None) -> bool:
    """Tells whether a pull would go on with an interrupted one, which is not running and makes the same formats."""
    begun = _begun(reference, library)
    return begun is not None and not begun[1] and wanted in (None, begun[0].quantisation)


def _begun(reference: str, library: Library) -> tuple[PulledAs, bool] | None:
    """Returns what an unfinished pull of this name was asked for, and whether it is running."""
    if "/" in reference:
        return None
    found = (partial for partial in find_partials(library.home) if partial.matches(reference))
    return next(((partial.asked, partial.running) for partial in found if partial.asked), None)


def as_path(reference: str) -> Path | None:
    """Returns the absolute path that a reference means by its form, or as the name of a checkpoint folder here."""
    path = os.path.expanduser(reference)
    looks_so = reference in (".", "..", "~") or reference.startswith(("/", "./", "../", "~/"))
    is_gguf = path.lower().endswith(".gguf") and (os.path.isfile(path) or "/" not in path)
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
    prefix = _HUB_PREFIX.match(reference)
    if prefix is None:
        return None
    page = _GGUF_PAGE.fullmatch(reference[prefix.end() :])
    if page is not None:
        return Origin("hub", page[1], "" if page[2] == "main" else page[2], _gguf_name(page[1], page[3]), file=page[3])
    rest = re.sub(r"/tree/([^/]+)/?$", r"@\1", reference[prefix.end() :]).rstrip("/")
    return _hub_origin(rest) or Origin("hub", rest, "", "model")  # what is no repository is refused when it is opened


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
        model.source_record().get("requested", ""),
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
    alias = _aliases(home).get(reference.lower().removesuffix(":latest"))
    return _hub_origin(reference) if alias is None else replace(alias, name=reference.lower())


def known_sources(home: Path) -> dict[str, str]:
    """Returns the aliases in order, and where each is pulled from: org/repo[:tag][@revision], or `embedded`.

    Raises UsageError as named_origin does.
    """
    return {name: _reference_of(alias) for name, alias in sorted(_aliases(home).items())}


def full_name(name: str) -> str:
    """Completes a name that a user gave to `name:tag`. Raises UsageError."""
    return ":".join(parse_name(name))


def _hub_origin(text: str) -> Origin | None:
    match = _REPO.fullmatch(text)
    if match is None:
        return None
    tag = "" if match[2] is None or match[2].lower() == "latest" else match[2]
    return Origin("hub", match[1], match[3] or "", _gguf_name(match[1], tag) if tag else name_from(match[1]), file=tag)


def _gguf_name(repo: str, file: str) -> str:
    """The repository's name, and as a tag what tells its files apart."""
    tag = re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", file.rpartition("/")[2], flags=re.IGNORECASE)
    return f"{name_from(repo)}:{name_from(tag)}"


def _reference_of(alias: Origin) -> str:
    if alias.kind == "embedded":
        return alias.kind
    return alias.location + (f":{alias.file}" if alias.file else "") + (f"@{alias.revision}" if alias.revision else "")


def _aliases(home: Path) -> dict[str, Origin]:
    """Those that come with moeinf, and the user's own, which go first."""
    built_in: dict[str, dict[str, str]] = json.loads((DATA / "aliases.json").read_text())
    found = {
        name: Origin("embedded", alias["name"], "", name)
        if alias["kind"] == "embedded"
        else Origin("hub", alias["repo"], alias.get("revision", ""), name)
        for name, alias in built_in.items()
    }
    return found | _own_aliases(home / ALIAS_FILE)


def _own_aliases(path: Path) -> dict[str, Origin]:
    """The user's names: {"small": "org/repo@commit"}. Raises UsageError for what is no name, or no repository."""
    try:
        given = parse_json_object(read_small(path, 1 << 20), str(path), UsageError)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; make it readable, or delete it") from error
    found = {}
    for name, reference in given.items():
        parse_name(name)
        origin = outside_origin(reference) or _hub_origin(reference) if isinstance(reference, str) else None
        if origin is None or origin.kind != "hub":
            raise UsageError(f'{path}: {name!r} is no org/repo[:tag][@revision]: write "name": "org/repo@commit"')
        found[name.lower().removesuffix(":latest")] = origin
    return found
