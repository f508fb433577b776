"""Pulls a model: chooses the steps that its source needs, and takes them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from moeinf.config.pull_options import NO_OPTIONS, PullOptions
from moeinf.errors import DiskSpaceError, UsageError
from moeinf.pull.checkpoint.convert import PORTIONS, Portions
from moeinf.pull.checkpoint.pull import CheckpointPull
from moeinf.pull.events import PullProgress, SilentProgress
from moeinf.pull.gguf.local import LocalFile
from moeinf.pull.model_names import Origin, continues, full_name, origin_of, outside_origin, stored_model, variant_name
from moeinf.pull.source import FolderSource, Source
from moeinf.pull.steps import Headers, PlannedFile, PullPlan, Steps, free_bytes
from moeinf.store.files import errors_named, make_home
from moeinf.store.library import Library, StoredModel
from moeinf.store.manifest import ModelSource
from moeinf.store.naming.aliases import DATA
from moeinf.store.naming.names import asked_revision, default_name, has_tag
from moeinf.store.quantisation import Quantisation, chosen
from moeinf.text.quantities import shortage_text

if TYPE_CHECKING:  # takes 0.2 s that no other source has to pay
    from moeinf.pull.gguf.remote import HubFile
    from moeinf.pull.hub.repository import HubRepository

_NO_NAME = "headers-alone"  # of a model that is only looked at


def pull(
    source: str,
    options: PullOptions = NO_OPTIONS,
    *,
    home: Path,
    progress: PullProgress | None = None,
    portions: Portions = PORTIONS,
) -> StoredModel:
    """Fetches and converts a model and publishes it under a name; goes on where an interrupted pull stopped.

    source: path of a checkpoint folder, org/repo[@revision] or an address of the Hub, an alias, or the name of a stored
    model, which is brought up to date. Blocks; another pull of the same source is waited for.
    portions: how much of a shard is read and flushed at once.
    Raises UsageError, ModelNotFoundError, CheckpointError, HubError, StoreError, DiskSpaceError: one line each. What
    was done stays for the next attempt.
    """
    with errors_named(home):
        steps = _steps(source, options, home, progress, portions)
        make_home(home)
        return steps.run(force=options.force, keep_source=options.keep_source)


def plan_pull(
    source: str, options: PullOptions = NO_OPTIONS, *, home: Path, progress: PullProgress | None = None
) -> PullPlan:
    """Returns what `pull` would do with the same arguments. Writes nothing; raises what `pull` raises."""
    with errors_named(home):
        return _steps(source, options, home, progress).plan()


def read_headers(
    source: str, options: PullOptions = NO_OPTIONS, *, home: Path, progress: PullProgress | None = None
) -> Headers:
    """Returns what the headers of a source say of the model that `pull` would store, whatever its name.

    Writes nothing and reads no weights; raises what `pull` raises for a source that it cannot use.
    """
    with errors_named(home):
        return _steps(source, replace(options, name=_NO_NAME), home, progress).headers()


def _steps(
    source: str, options: PullOptions, home: Path, progress: PullProgress | None, portions: Portions = PORTIONS
) -> Steps:
    library = Library(home)
    wanted = chosen(options.quant, options.quant_experts, options.quant_dense)
    origin = origin_of(source, library)
    if options.revision is not None:
        if origin.kind != "hub":
            raise UsageError(f"--revision is for repositories of the Hub; {source[:100]!r} is none")
        origin = _at(origin, options.revision)
    name = options.name
    if wanted is not None and (name is None or not has_tag(name)):
        name = variant_name(origin, wanted, name)
    target = full_name(name or origin.name)
    quantisation = wanted or origin.quantisation
    progress, repacked = progress or SilentProgress(), options.repack or origin.repacked
    if origin.kind == "file":
        _refuse_quantisation(wanted)
        return _FilePull(LocalFile(Path(origin.location), name and target, library, progress, repacked, options.mmproj))
    progress.stage("pulling manifest")
    opened = open_source(origin, options.token, progress)
    if not isinstance(opened, Source):
        from moeinf.pull.gguf.remote import HubFile

        _refuse_quantisation(wanted)
        return _HubFilePull(HubFile(opened, origin.file, target, library, progress, repacked, options.mmproj))
    if options.repack:
        raise UsageError(
            f"--repack is for GGUF files; {source[:100]!r} is a checkpoint, which is converted in any case"
        )
    if options.mmproj is not None:
        raise UsageError(
            f"--mmproj is for GGUF files; {source[:100]!r} is a checkpoint, which has its vision tower itself"
        )
    return CheckpointPull(library, origin, target, quantisation, opened, progress, portions)


def _at(origin: Origin, revision: str) -> Origin:
    """The origin at another revision, which has a name of its own where it had its source's."""
    moved = replace(origin, revision=asked_revision(revision))
    same = full_name(origin.name) == full_name(default_name(origin.source))
    return replace(moved, name=default_name(moved.source)) if same else moved


def _refuse_quantisation(wanted: Quantisation | None) -> None:
    if wanted is not None:
        raise UsageError(
            "--quant: a GGUF file is used as it is; leave it out, choose a file of another quantisation, or pull the "
            "original checkpoint"
        )


@dataclass(frozen=True, slots=True)
class _FilePull:
    """The steps for a GGUF file of this machine, which is used where it lies."""

    file: LocalFile

    def plan(self) -> PullPlan:
        name, source, sizes, done = self.file.plan()
        files = tuple(PlannedFile(file, num_bytes, 0) for file, num_bytes in sizes)
        copied = sum(num_bytes for _, num_bytes in sizes) if self.file.repacked and not done else 0
        return PullPlan(name, source, files, copied, copied, free_bytes(self.file.library.home), done, ())

    def headers(self) -> Headers:
        return self.file.headers()

    def run(self, *, force: bool, keep_source: bool) -> StoredModel:
        if self.file.repacked and not force:
            plan = self.plan()
            if plan.needed_bytes > plan.free_bytes:
                shortage = shortage_text(plan.needed_bytes, plan.free_bytes)
                raise DiskSpaceError(
                    f"not enough disk space in {self.file.library.home}: {shortage}; free some, leave --repack out, or "
                    "use --force"
                )
        return self.file.run(checked=True)


@dataclass(frozen=True, slots=True)
class _HubFilePull:
    """The steps for GGUF files of the Hub, which are downloaded and kept as they are."""

    file: HubFile

    def plan(self) -> PullPlan:
        file, repository = self.file, self.file.repository
        files = tuple(PlannedFile(part, repository.num_bytes(part), file.missing_bytes(part)) for part in file.files)
        done = bool(file.made())
        needed = 0 if done else file.needed_bytes
        free = free_bytes(file.library.home)
        return PullPlan(file.name, file.source, files, file.store_bytes, needed, free, done, ())

    def headers(self) -> Headers:
        return self.file.headers()

    def run(self, *, force: bool, keep_source: bool) -> StoredModel:
        if keep_source and self.file.repacked:
            raise UsageError("--keep-source: leave --repack out, then the download is used as it is and stays")
        return self.file.run(force=force)


def ensure(
    reference: str,
    *,
    home: Path,
    quant: str | None = None,
    token: str | None = None,
    progress: PullProgress | None = None,
) -> StoredModel:
    """Returns the stored model that `run` means, and pulls it first if need be. A stored one needs no network.

    Order: a path, an address of the Hub, a stored name, an alias, org/repo[@revision]. quant: as for `pull`, which
    makes another model of the same source: `demo:q4_k`.
    """
    library = Library(home)
    with errors_named(home):
        stored = stored_model(reference, library, chosen(quant))
        if stored is None and progress is not None and continues(reference, library, chosen(quant)):
            progress.note(f"the pull of {reference} was interrupted; going on with it")
        outside = outside_origin(reference)
        if stored is None and outside is not None and outside.kind == "file":
            _refuse_quantisation(chosen(quant))
            make_home(home)
            return LocalFile(Path(outside.location), None, library, progress or SilentProgress()).run(checked=False)
    return stored or pull(reference, PullOptions(quant=quant, token=token), home=home, progress=progress)


def open_source(origin: Origin, token: str | None, progress: PullProgress) -> Source | HubRepository:
    if origin.kind == "folder":
        return FolderSource(Path(origin.location))
    if origin.kind == "embedded":
        word, _, tag = origin.location.partition(":")  # the weights, and the folder in it of files beside them
        over = DATA / word / tag if tag else None
        return FolderSource(DATA / word, ModelSource("embedded", origin.location), over=over)
    # Here and not at the top: it takes 0.2 s that no other source has to pay.
    from moeinf.pull.hub.repository import open_hub

    return open_hub(origin.location, origin.revision, token, progress, gguf=bool(origin.file))
