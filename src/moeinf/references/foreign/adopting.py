"""Makes a model of another program one of the store's, which keeps an index of it and no weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from moeinf.config.pull_options import PullOptions
from moeinf.engine.stored.preset import Preset
from moeinf.errors import StoreError, UsageError
from moeinf.gguf.header import read_gguf
from moeinf.pull.events import PullProgress, SilentProgress
from moeinf.pull.pull import pull
from moeinf.references.foreign.foreign_model import ForeignModel
from moeinf.references.foreign.go_templates import KNOWN, twin_of
from moeinf.store.files import errors_named
from moeinf.store.library import Library, StoredModel
from moeinf.store.naming.names import full_name
from moeinf.text.quantities import size_text


def adopt(
    model: ForeignModel, options: PullOptions, library: Library, progress: PullProgress | None = None
) -> StoredModel:
    """The model of another program under a name in the store. A GGUF file is used where it lies, and a checkpoint is
    converted, as any folder.

    Raises what a pull raises.
    """
    progress = progress or SilentProgress()
    _check_template(model)
    given = replace(options, name=options.name or _free_name(model, library))
    if model.tower is not None:
        given = replace(given, mmproj=str(model.tower))
    known = {stored.id for stored in library.list()}
    stored = pull(model.origin, given, home=library.home, progress=progress, checked=False)
    if stored.id in known:
        return stored
    where = "is converted from" if model.is_checkpoint else f"uses {size_text(model.num_bytes)} in"
    progress.note(f"{stored.name} {where} the files of {model.owner}, which stay as they are")
    return _preset(stored, model, library, progress)


def _check_template(model: ForeignModel) -> None:
    """Raises UsageError for a chat template in Go that is none of those known, where the file has no other."""
    if model.fault or not model.template or twin_of(model.template) is not None:
        return
    gguf = read_gguf(model.path)
    if not any(name in gguf.metadata for name in ("tokenizer.chat_template", "tokenizer.chat_templates")):
        known = ", ".join(dict.fromkeys(each.family for each in KNOWN if each.jinja))
        raise UsageError(
            f"{model.owner}'s {model.name} has a chat template in Go that is none of those known here ({known}), "
            f"and its file has no other; `moeinf run {model.path}` continues text with it, or take another file of it"
        )


def _free_name(model: ForeignModel, library: Library) -> str:
    """Its own name, with the owner's behind it where the store has another model of that name."""
    name = full_name(model.own_name)
    for held in library.list():
        if held.name == name:
            with suppress(StoreError):
                in_place = held.manifest.in_place
                if in_place is not None and model.path in in_place.paths(held.path):
                    return name
            return f"{name}-{model.owner}"
    return name


def _preset(stored: StoredModel, model: ForeignModel, library: Library, progress: PullProgress) -> StoredModel:
    """With the system message and the options that its owner would give it."""
    pairs = tuple(_pairs(model.params, progress))
    if not pairs and not model.system:
        return stored
    with errors_named(library.home), library.lock():
        return library.bind(stored.name, stored.id, Preset(model.system, pairs).dumps())


def _pairs(params: Mapping[str, object], progress: PullProgress) -> Iterator[tuple[str, str]]:
    """The options that are known here. Of others, a note says so."""
    for name, value in params.items():
        for each in value if isinstance(value, list) else [value]:
            text = str(each).lower() if isinstance(each, bool) else str(each)
            try:
                Preset("", ((name, text),))
            except UsageError as error:
                progress.note(f"its option {name} {text:.50} is left out: {error}")
            else:
                yield name, text
