"""What a user's model argument means: a path, a Hub repository, an alias or a stored name."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from moeinf.errors import StoreError
from moeinf.store.library import StoredModel
from moeinf.store.manifest import ModelSource
from moeinf.store.names import name_from, parse_name
from moeinf.store.partials import PulledAs, parse_receipt
from moeinf.store.quantisation import KEEP, Quantisation

DATA = Path(__file__).parents[1] / "data"
_HUB_PREFIX = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/|hf://", re.IGNORECASE)
_REPO = re.compile(r"([^/\s@]+/[^/\s@]+)(?:@(\S+))?")


@dataclass(frozen=True, slots=True)
class Origin:
    """Something that can be pulled, and the name that it gets by default."""

    kind: Literal["hub", "folder", "embedded"]
    location: str  # org/repo, path, or name of the embedded model
    revision: str
    name: str
    quantisation: Quantisation = KEEP  # what a pull of it stores, where nothing else is asked for

    @property
    def source(self) -> ModelSource:
        """Of the revision that was asked for."""
        return ModelSource(self.kind, self.location, self.revision)

    @property
    def locator(self) -> str:
        """Two pulls with the same locator, into the same formats, share one work folder."""
        return f"{self.kind}:{self.location}@{self.revision}"


def as_path(reference: str) -> Path | None:
    """A reference in the form of a path, or the name of a checkpoint folder here; absolute, links resolved."""
    path = os.path.expanduser(reference)
    looks_so = reference in (".", "..", "~") or reference.startswith(("/", "./", "../", "~/"))
    if "\0" in reference or not (looks_so or os.path.isfile(os.path.join(path, "config.json"))):
        return None
    return Path(os.path.realpath(path))  # not Path.resolve, which raises for a loop of links


def outside_origin(reference: str) -> Origin | None:
    """Forms that come before stored names: paths and addresses of the Hub."""
    path = as_path(reference)
    if path is not None:
        return Origin("folder", str(path), "", name_from(path.name))
    prefix = _HUB_PREFIX.match(reference)
    if prefix is None:
        return None
    rest = re.sub(r"/tree/([^/]+)/?$", r"@\1", reference[prefix.end() :]).rstrip("/")
    return _hub_origin(rest) or Origin("hub", rest, "", "model")  # what is no repository is refused when it is opened


def stored_origin(model: StoredModel) -> Origin:
    """What a stored model was made of, for an update.

    Where its manifest is damaged, the receipt tells. Raises StoreError where that does not, either.
    """
    try:
        source = model.manifest.source
    except StoreError as damaged:
        asked = parse_receipt(model.receipt())
        if asked is None:
            raise StoreError(f"{damaged}: `moeinf pull SOURCE --name {model.name}`, from where it came") from damaged
        return replace(partial_origin(asked), name=model.name)
    return Origin(
        source.kind, source.location, model.receipt().get("requested", ""), model.name, model.manifest.quantisation
    )


def partial_origin(asked: PulledAs) -> Origin:
    """What an interrupted pull was of, to go on with it."""
    source = asked.source
    return Origin(source.kind, source.location, source.revision, asked.name, asked.quantisation)


def named_origin(reference: str) -> Origin | None:
    """Forms that come after stored names: aliases, then org/repo[@revision]."""
    alias = _aliases().get(reference.lower().removesuffix(":latest"))
    if alias is not None:
        name = reference.lower()
        if alias["kind"] == "embedded":
            return Origin("embedded", alias["name"], "", name)
        return Origin("hub", alias["repo"], "", name)
    return _hub_origin(reference)


def known_sources() -> dict[str, str]:
    """The aliases in order, and where each is pulled from: org/repo, or `embedded`."""
    return {name: alias.get("repo", alias["kind"]) for name, alias in sorted(_aliases().items())}


def full_name(name: str) -> str:
    """`name:tag` of what a user gave as a name. Raises UsageError."""
    return ":".join(parse_name(name))


def _hub_origin(text: str) -> Origin | None:
    match = _REPO.fullmatch(text)
    return Origin("hub", match[1], match[2] or "", name_from(match[1])) if match else None


def _aliases() -> dict[str, dict[str, str]]:
    aliases: dict[str, dict[str, str]] = json.loads((DATA / "aliases.json").read_text())
    return aliases
