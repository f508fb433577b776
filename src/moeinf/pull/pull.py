"""Pulls a model: finds out where it comes from, and takes the steps for what is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from moeinf.config.pull_options import NO_OPTIONS, PullOptions
from moeinf.pull.checkpoint.checkpoint_pull import CheckpointPull
from moeinf.pull.checkpoint.convert import PORTIONS, Portions
from moeinf.pull.events import PullProgress, SilentProgress
from moeinf.pull.gguf.local import FilePull
from moeinf.pull.lora.adapter_origin import adapter_source, open_adapter
from moeinf.pull.lora.merged_source import MergedSource
from moeinf.pull.origins import Origin, continues, resolve, stored_model
from moeinf.pull.source import FolderSource, Source
from moeinf.pull.steps import Headers, PullPlan, Steps
from moeinf.pull.task import PullTask
from moeinf.store.files import errors_named, make_home
from moeinf.store.library import Library, StoredModel
from moeinf.store.manifest import ModelSource, SourceKind
from moeinf.store.naming.catalogue import DATA
from moeinf.store.naming.names import full_name, has_tag
from moeinf.store.quantisation import chosen

_NO_NAME = "headers-alone"  # of a model that is only looked at


def pull(
    source: str | Origin,
    options: PullOptions = NO_OPTIONS,
    *,
    home: Path,
    progress: PullProgress | None = None,
    portions: Portions = PORTIONS,
    checked: bool = True,
) -> StoredModel:
    """Fetches and converts a model and publishes it under a name; goes on where an interrupted pull stopped.

    source: path of a checkpoint folder, org/repo[@revision] or an address of the Hub, an alias, or the name of a stored
    model, which is brought up to date; or what such a reference was found to mean. Blocks; another pull of the same
    source is waited for.
    portions: how much of a shard is read and flushed at once. checked: False leaves a GGUF file of this machine without
    checksums, for which all of it would be read.
    Raises UsageError, ModelNotFoundError, CheckpointError, HubError, StoreError, DiskSpaceError: one line each. What
    was done stays for the next attempt.
    """
    with errors_named(home):
        steps = _steps(source, options, home, progress, portions, checked=checked)
        make_home(home)
        return steps.run()


def plan_pull(
    source: str | Origin, options: PullOptions = NO_OPTIONS, *, home: Path, progress: PullProgress | None = None
) -> PullPlan:
    """Returns what `pull` would do with the same arguments. Writes nothing; raises what `pull` raises."""
    with errors_named(home):
        return _steps(source, options, home, progress).plan()


def read_headers(
    source: str | Origin, options: PullOptions = NO_OPTIONS, *, home: Path, progress: PullProgress | None = None
) -> Headers:
    """Returns what the headers of a source say of the model that `pull` would store, whatever its name.

    Writes nothing and reads no weights; raises what `pull` raises for a source that it cannot use.
    """
    with errors_named(home):
        return _steps(source, replace(options, name=_NO_NAME), home, progress).headers()


def ensure(
    reference: str,
    options: PullOptions = NO_OPTIONS,
    *,
    home: Path,
    progress: PullProgress | None = None,
    origin: Origin | None = None,
) -> StoredModel:
    """Returns the stored model that `run` means, and pulls it first if need be. A stored one needs no network.

    Order: a path, an address of the Hub, a stored name, an alias, org/repo[@revision]. A format and an adapter make
    another model of the same source: `demo:q4_k`. origin: what the reference was found to mean.
    """
    library, wanted = Library(home), chosen(options.quant)
    adapter = None if options.lora is None else adapter_source(options.lora)
    with errors_named(home):
        stored = stored_model(reference, library, wanted, adapter)
        if stored is not None and adapter is not None and adapter.kind in ("folder", "file"):
            state = open_adapter(adapter, options.token, progress or SilentProgress()).fingerprint
            stored = stored if f" with {state}" in stored.source_record().get("fingerprint", "") else None
        begun = stored is None and adapter is None and continues(reference, library, wanted)
        if begun and progress is not None:
            progress.note(f"the pull of {reference} was interrupted; going on with it")
    return stored or pull(origin or reference, options, home=home, progress=progress, checked=False)


def _steps(
    source: str | Origin,
    options: PullOptions,
    home: Path,
    progress: PullProgress | None,
    portions: Portions = PORTIONS,
    *,
    checked: bool = True,
) -> Steps:
    library, name = Library(home), options.name
    wanted = chosen(options.quant, options.quant_experts, options.quant_dense)
    origin = source if isinstance(source, Origin) else resolve(source, library, options.revision)
    if options.lora is not None:
        origin = replace(origin, adapter=adapter_source(options.lora))
    tagged = wanted is not None or (options.lora is not None and name is None)
    if tagged and (name is None or not has_tag(name)):
        name = origin.variant_name(wanted or origin.quantisation, name)
    target, progress = full_name(name or origin.name), progress or SilentProgress()
    task = PullTask(origin, target, wanted, options, library, progress, portions, checked)
    return _KINDS[origin.source.kind](task)


def _of_folder(task: PullTask) -> Steps:
    task.progress.stage("pulling manifest")
    return CheckpointPull(task, _merged(task, FolderSource(Path(task.origin.source.location))))


def _of_the_package(task: PullTask) -> Steps:
    task.progress.stage("pulling manifest")
    location = task.origin.source.location
    word, _, tag = location.partition(":")  # the weights, and the folder in it of files beside them
    over = DATA / word / tag if tag else None
    source = FolderSource(DATA / word, ModelSource("embedded", location), over=over)
    return CheckpointPull(task, _merged(task, source))


def _of_the_hub(task: PullTask) -> Steps:
    """Of GGUF files where the repository has nothing else, or one was asked for; else of a checkpoint."""
    task.progress.stage("pulling manifest")
    # Here and not at the top: it takes 0.2 s that no other source has to pay.
    from moeinf.pull.gguf.remote_gguf import HubFilePull
    from moeinf.pull.hub.repository import open_hub

    return open_hub(
        task.origin.source,
        task.options.token,
        task.progress,
        lambda source: CheckpointPull(task, _merged(task, source)),
        lambda repository: HubFilePull(task, repository),
    )


def _merged(task: PullTask, source: Source) -> Source:
    """With the adapter that was asked for, or that the model had before."""
    opened = task.opened_adapter()
    return source if opened is None else MergedSource(source, opened, task.progress)


_KINDS: Mapping[SourceKind, Callable[[PullTask], Steps]] = {
    "file": FilePull,
    "folder": _of_folder,
    "embedded": _of_the_package,
    "hub": _of_the_hub,
}
