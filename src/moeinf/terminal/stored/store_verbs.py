"""The verbs of stored models: list, rm, cp, create, prune, verify and spread. Heavy imports are inside the verbs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeinf.config.environment import store_home
from moeinf.config.pull_options import PullOptions
from moeinf.errors import MoeinfError, StoreError, UsageError
from moeinf.terminal.arguments.named import AsJson, Quiet, StoredName
from moeinf.terminal.arguments.shell_completion import stored_names
from moeinf.terminal.screen import can_draw, print_fitted

if TYPE_CHECKING:
    from moeinf.references.foreign.foreign_model import ForeignModel
    from moeinf.store.library import StoredModel


def list_models(
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Only models whose names begin so.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="List interrupted pulls as well.")] = False,
    available: Annotated[bool, typer.Option("--available", help="List the names that pull knows instead.")] = False,
    json: AsJson = False,
) -> None:
    """List stored models, newest first (also: ls)."""
    if available:
        if everything:
            raise UsageError("only one of --all and --available at a time")
        return _list_available(prefix.lower(), as_json=json)
    from moeinf.store.library import Library
    from moeinf.terminal.stored.listing import foreign_lines, list_json, list_lines, partial_lines
    from moeinf.terminal.user_notes import say

    library = Library(store_home())
    models = [stored for stored in library.list() if stored.name.lower().startswith(prefix.lower())]
    partials = [
        each for each in (library.partials() if everything else ()) if each.name.lower().startswith(prefix.lower())
    ]
    foreign = [each for each in _foreign(models) if each.own_name.lower().startswith(prefix.lower())]
    if json:
        print(list_json(models, partials, foreign))
    else:
        print_fitted("\n".join([*list_lines(models), *partial_lines(partials), *foreign_lines(foreign)]))
    for fault in library.faults():
        say(f"note: {fault}")


def _foreign(models: Sequence[StoredModel]) -> list[ForeignModel]:
    """The models of other programs, without those that the store uses already."""
    from moeinf.references.foreign.owners import foreign_models

    used = set[Path]()
    for stored in models:
        with suppress(StoreError):
            in_place = stored.manifest.in_place
            used.update(in_place.paths(stored.path) if in_place is not None else ())
    return [model for model in foreign_models() if model.path not in used]


def _list_available(prefix: str, *, as_json: bool) -> None:
    from moeinf.forecast.available import available as available_models
    from moeinf.terminal.stored.available_table import available_lines

    if as_json:
        print(dumps(available_models(store_home(), prefix), indent=2))
    else:
        print_fitted("\n".join(available_lines(store_home(), prefix)))


def rm(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Models and interrupted pulls.", autocompletion=stored_names)
    ],
) -> None:
    """Delete models and interrupted pulls. Stops at the first that fails."""
    from moeinf.store.library import Library
    from moeinf.store.spread.whole import left_copies
    from moeinf.terminal.user_notes import say
    from moeinf.text.quantities import size_text

    library = Library(store_home())
    for name in models:
        freed = library.remove(name)
        print(f"deleted '{name}' ({size_text(freed)} freed)")
    for copy in left_copies(library):
        say(
            f"note: experts of {copy.name} are left in {copy.folder}, which is not there now; mount its disk, then "
            "`moeinf prune` deletes them"
        )


def cp(
    source: StoredName, name: Annotated[str, typer.Argument(metavar="NAME", help="Another name for the model.")]
) -> None:
    """Give a model one more name. No weights are copied."""
    from moeinf.store.library import Library

    Library(store_home()).copy(source, name)
    print(f"copied '{source}' to '{name}'")


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the new model.")],
    file: Annotated[
        Path, typer.Option("--file", "-f", metavar="PATH", help="What it is made of. [default: Modelfile]")
    ] = Path("Modelfile"),
    quiet: Quiet = False,
) -> None:
    """Name a model with a system message and options of its own.

    A Modelfile has the lines FROM MODEL, ADAPTER FOLDER, PARAMETER NAME VALUE and SYSTEM TEXT, as in ollama; text
    within three double quotes may have many lines. The options are those of `run -o`, and those that say how a model is
    run, such as expert_cache. An adapter is merged as by `pull --lora`; without one no weights are copied.
    """
    from moeinf.engine.stored.own_names import give_name
    from moeinf.store.library import Library
    from moeinf.store.naming.names import full_name
    from moeinf.terminal.arguments.modelfile_options import read_modelfile
    from moeinf.terminal.session_opening import ensure_stored
    from moeinf.terminal.user_notes import say

    full_name(name)
    asked = read_modelfile(file)
    for note in asked.notes:
        say(f"note: {note}")
    stored = ensure_stored(asked.source, PullOptions(lora=asked.adapter), quiet=quiet)
    give_name(Library(store_home()), stored, name, asked.preset)
    print(f"created '{name}'")


def prune() -> None:
    """Delete interrupted pulls, and what nothing needs any more.

    `moeinf list --all` shows what was interrupted; pulling again would go on with it.
    """
    from moeinf.store.library import Library
    from moeinf.terminal.user_notes import say
    from moeinf.text.quantities import size_text

    done = Library(store_home()).prune()
    pulls = f"{done.num_pulls} interrupted {'pull' if done.num_pulls == 1 else 'pulls'}"
    left = f", {size_text(done.left_bytes)} that killed processes had left" if done.left_bytes else ""
    if done.freed_bytes or done.num_pulls:
        print(f"{size_text(done.freed_bytes)} freed, {pulls}{left} among it")
    else:
        print("nothing to delete")
    for fault in done.faults:
        say(f"note: {fault}")


def verify(model: StoredName, quiet: Quiet = False) -> None:
    """Compare every expert and file with its checksum, on each disk."""
    from moeinf.store.spread.verify_copy import copy_faults
    from moeinf.store.spread.whole import copies_of, fault_of
    from moeinf.store.verify import verify as find_faults
    from moeinf.terminal.progress import ByteCount, StatusLine
    from moeinf.terminal.stored.find_stored import find_stored
    from moeinf.terminal.user_notes import say

    stored = find_stored(model)
    line = StatusLine(sys.stderr, enabled=can_draw(sys.stderr) and not quiet)
    notes: list[str] = []
    faults = find_faults(stored, ByteCount(line, f"verifying {stored.name}", stored.manifest.size_bytes), notes.append)
    line.clear()
    for each in notes:
        print(f"note: {each}", file=sys.stderr)
    manifest = stored.manifest
    if faults:
        print("\n".join(faults))
        raise MoeinfError(f"{len(faults)} fault(s) in {stored.name}; pull it again")
    num_files = len(stored.shard_paths) + len(manifest.files)
    print(f"verified {num_files} files, {manifest.moe.total_experts} {manifest.moe.kind}")
    for copy in copies_of(stored):
        if copy.divided:
            continue  # its part of every expert has been compared
        if fault := fault_of(copy, stored):
            say(f"note: {fault}")
            continue
        label = f"verifying {stored.name} in {copy.folder}"
        faults = copy_faults(copy, stored, ByteCount(line, label, sum(stored.shard_sizes)))
        line.clear()
        if faults:
            print("\n".join(faults))
            again = f"`moeinf spread {stored.name} --also {copy.folder}` copies what is damaged again"
            raise MoeinfError(f"{len(faults)} fault(s) in the experts of {stored.name} in {copy.folder}; {again}")
        print(f"verified its {manifest.moe.kind} in {copy.folder}")


def spread(
    model: StoredName,
    also: Annotated[
        Path | None, typer.Option("--also", metavar="DIR", help="A folder on another disk than the store's.")
    ] = None,
    divided: Annotated[
        bool, typer.Option("--divide", help="Keep no byte twice: a part of each expert moves to that disk.")
    ] = False,
    gathered: Annotated[
        bool, typer.Option("--gather", help="Bring all experts back into the store, and delete them elsewhere.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Lay experts on a second disk, too: both are read at once.

    From then on `run`, `serve` and `bench` read from both, each as fast as it was measured to be, and every other verb
    knows of both. What was interrupted goes on when it is repeated. Answers stay the same.
    """
    from moeinf.pull.spreading import divide, gather
    from moeinf.pull.spreading import spread as copy_experts
    from moeinf.terminal.progress import ByteCount, StatusLine
    from moeinf.terminal.stored.find_stored import find_stored
    from moeinf.terminal.user_notes import say
    from moeinf.text.quantities import size_text

    if gathered == (also is not None) or (divided and gathered):
        raise UsageError("give --also DIR, a folder on another disk, or --gather to bring all back")
    stored = find_stored(model)
    line = StatusLine(sys.stderr, enabled=can_draw(sys.stderr) and not quiet)
    progress = ByteCount(line, f"spreading {stored.name}", sum(stored.shard_sizes))

    def note(text: str) -> None:
        line.clear()
        say(f"note: {text}")

    try:
        if also is None:
            freed = gather(stored, progress, note)
            said = f"all experts of {stored.name} are in the store alone ({size_text(freed)} freed elsewhere)"
        else:
            folder = also.expanduser().absolute()
            (divide if divided else copy_experts)(stored, folder, progress, note)
            how = f"divided between the store and {folder}" if divided else f"in {folder} as well"
            said = f"the experts of {stored.name} are {how}; both disks are read"
    finally:
        line.clear()
    print(said)
