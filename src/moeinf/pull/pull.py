"""Pulls a model: joins source, tensor plan of the architecture, conversion and store."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from moeinf.config.pull_options import NO_OPTIONS, PullOptions
from moeinf.errors import CheckpointError, DiskSpaceError, UsageError
from moeinf.models.family import family_of
from moeinf.models.pruned import pruned_config
from moeinf.pull.coded.declared import declared_by
from moeinf.pull.convert import PORTIONS, Portions, convert_shard, create_files, read_bytes
from moeinf.pull.events import PullProgress, SilentProgress, Verb
from moeinf.pull.gguf.local import LocalFile
from moeinf.pull.journal import Journal
from moeinf.pull.model_names import (
    DATA,
    Origin,
    continues,
    full_name,
    origin_of,
    outside_origin,
    stored_model,
    variant_name,
)
from moeinf.pull.plan import Conversion, plan_conversion, router_rows
from moeinf.pull.seal import publish_model, seal
from moeinf.pull.source import FolderSource, Source, read_config
from moeinf.store.files import errors_named, make_folders
from moeinf.store.format import Header, read_header
from moeinf.store.library import Library, StoredModel
from moeinf.store.manifest import ModelSource
from moeinf.store.partials import PulledAs, partial_folder, pull_lock
from moeinf.store.quantisation import KEEP, SMALL, Quantisation, chosen
from moeinf.store.sharing import share_files
from moeinf.text.quantities import size_text
from moeinf.text.tokenizer import check_text_files
from moeinf.types import TensorPlan

if TYPE_CHECKING:  # takes 0.2 s that no other source has to pay
    from moeinf.pull.gguf.remote import HubFile
    from moeinf.pull.hub import HubRepository

_SPACE_MARGIN = 1.02  # for the file system's own records


@dataclass(frozen=True, slots=True)
class PlannedFile:
    file: str
    num_bytes: int
    fetch_bytes: int  # still to be downloaded; 0 where it is on this machine


@dataclass(frozen=True, slots=True)
class PullPlan:
    """The steps and sizes of a pull that has not begun."""

    name: str  # "mixtral:latest"
    source: ModelSource
    files: tuple[PlannedFile, ...]  # of the source
    store_bytes: int  # of the finished model
    needed_bytes: int  # of free disk: what is still to be written, and the largest shard still to be downloaded
    free_bytes: int
    up_to_date: bool
    fallbacks: tuple[str, ...]  # one line for each reason why weights are stored in another format than wanted

    @property
    def fetch_bytes(self) -> int:
        return sum(file.fetch_bytes for file in self.files)


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
        return steps.run(force=options.force, keep_source=options.keep_source)


def plan_pull(
    source: str, options: PullOptions = NO_OPTIONS, *, home: Path, progress: PullProgress | None = None
) -> PullPlan:
    """Returns what `pull` would do with the same arguments. Writes nothing; raises what `pull` raises."""
    with errors_named(home):
        return _steps(source, options, home, progress).plan()


def _steps(
    source: str, options: PullOptions, home: Path, progress: PullProgress | None, portions: Portions = PORTIONS
) -> _Steps:
    library = Library(home)
    wanted = chosen(options.quant, options.quant_experts, options.quant_dense)
    origin = origin_of(source, library)
    if options.revision is not None:
        if origin.kind != "hub":
            raise UsageError(f"--revision is for repositories of the Hub; {source[:100]!r} is none")
        origin = replace(origin, revision=options.revision)
    name = options.name
    if wanted is not None and (name is None or ":" not in name):
        name = variant_name(name or origin.name, wanted)
    target = full_name(name or origin.name)
    quantisation = wanted or origin.quantisation
    progress, repacked = progress or SilentProgress(), options.repack or origin.repacked
    if origin.kind == "file":
        _refuse_quantisation(wanted)
        return _FilePull(LocalFile(Path(origin.location), name and target, library, progress, repacked))
    progress.stage("pulling manifest")
    opened = open_source(origin, options.token, progress)
    if not isinstance(opened, Source):
        from moeinf.pull.gguf.remote import HubFile

        _refuse_quantisation(wanted)
        return _HubFilePull(HubFile(opened, origin.file, target, library, progress, repacked))
    if options.repack:
        raise UsageError(
            f"--repack is for GGUF files; {source[:100]!r} is a checkpoint, which is converted in any case"
        )
    return _Pull(library, origin, target, quantisation, opened, progress, portions)


def _refuse_quantisation(wanted: Quantisation | None) -> None:
    if wanted is not None:
        raise UsageError(
            "--quant: a GGUF file is used as it is; leave it out, choose a file of another quantisation, or pull the "
            "original checkpoint"
        )


class _Steps(Protocol):
    """What a pull consists of."""

    def plan(self) -> PullPlan: ...

    def run(self, *, force: bool, keep_source: bool) -> StoredModel: ...


@dataclass(frozen=True, slots=True)
class _FilePull:
    """The steps for a GGUF file of this machine, which is used where it lies."""

    file: LocalFile

    def plan(self) -> PullPlan:
        name, source, sizes, done = self.file.plan()
        files = tuple(PlannedFile(file, num_bytes, 0) for file, num_bytes in sizes)
        copied = sum(num_bytes for _, num_bytes in sizes) if self.file.repacked and not done else 0
        return PullPlan(name, source, files, copied, copied, _free_bytes(self.file.library.home), done, ())

    def run(self, *, force: bool, keep_source: bool) -> StoredModel:
        if self.file.repacked and not force:
            plan = self.plan()
            if plan.needed_bytes > plan.free_bytes:
                raise DiskSpaceError(
                    f"not enough disk space in {self.file.library.home}: {size_text(plan.needed_bytes)} needed, "
                    f"{size_text(plan.free_bytes)} free; free some, leave --repack out, or use --force"
                )
        return self.file.run(checked=True)


@dataclass(frozen=True, slots=True)
class _HubFilePull:
    """The steps for GGUF files of the Hub, which are downloaded and kept as they are."""

    file: HubFile

    def plan(self) -> PullPlan:
        file, repository = self.file, self.file.repository
        files = tuple(PlannedFile(part, repository.num_bytes(part), file.missing_bytes(part)) for part in file.parts)
        done = bool(file.made())
        needed = 0 if done else file.needed_bytes
        free = _free_bytes(file.library.home)
        return PullPlan(file.name, file.source, files, file.store_bytes, needed, free, done, ())

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
    from moeinf.pull.hub import open_hub

    return open_hub(origin.location, origin.revision, token, progress, gguf=bool(origin.file))


def _free_bytes(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    with errors_named(folder):
        return shutil.disk_usage(folder).free


class _Pull:
    """The steps of one pull."""

    def __init__(
        self,
        library: Library,
        origin: Origin,
        name: str,
        quantisation: Quantisation,
        source: Source,
        progress: PullProgress,
        portions: Portions,
    ) -> None:
        self._library = library
        self._origin = origin
        self._name = name
        self._quantisation = quantisation
        self._verb: Verb = "converting" if quantisation == KEEP else "quantising"
        self._progress = progress
        self._portions = portions
        self._folder = partial_folder(library.home, quantisation.of(origin.locator))
        library.check_origin(name, origin.source)
        self._source = source
        self._fingerprint = quantisation.of(self._source.fingerprint)
        self._asked = PulledAs(name, origin.source, quantisation)
        self._journal = Journal(self._folder, self._asked, self._fingerprint)
        self._config = read_config(self._source)
        self._family = family_of(self._config)

    def plan(self) -> PullPlan:
        conversion, _ = self._plan_conversion()
        journal, source = self._journal, self._source
        journal.peek(conversion)
        downloads = journal.download_folder
        files = tuple(
            PlannedFile(shard, source.shard_bytes(shard), source.fetch_bytes(shard, downloads))
            for shard in source.shards.files
        )
        done = self._library.made_of(self._fingerprint)
        needed = 0 if done else self._needed_bytes(conversion, downloads)
        return PullPlan(
            self._name,
            source.origin,
            files,
            conversion.total_bytes,
            needed,
            _free_bytes(self._library.home),
            bool(done),
            conversion.fallbacks,
        )

    def run(self, *, force: bool, keep_source: bool) -> StoredModel:
        # A work folder is there while a pull is under way, or was killed; then the lock decides what is left to do.
        stored = None if self._folder.exists() else self._up_to_date()
        if stored is None:
            with pull_lock(self._folder, self._name, self._progress.note, self._progress.waiting):
                stored = self._up_to_date() or self._publish_made()
                if stored is None:
                    stored = self._make(force=force, keep_source=keep_source)
                self._journal.close()
        return stored

    def _up_to_date(self) -> StoredModel | None:
        """Returns the model of this name if it was made of this very state of the source."""
        for model in self._library.made_of(self._fingerprint):
            if model.name == self._name:
                self._progress.stage(f"{self._name} is up to date")
                return model
        return None

    def _publish_made(self) -> StoredModel | None:
        """Names the model that was made of this source under another name, or by a pull killed at its last step."""
        made = self._library.made_of(self._fingerprint)
        if not made:
            return None
        with errors_named(self._library.home), self._library.lock():
            return self._library.bind(self._name, made[0].id)

    def _make(self, *, force: bool, keep_source: bool) -> StoredModel:
        conversion, headers = self._plan_conversion()
        journal = self._journal
        self._say_sizes(conversion, headers)
        notice = journal.open(conversion)
        if notice:
            self._progress.note(notice)
        for line in conversion.fallbacks:
            self._progress.note(line)
        downloads = self._kept_folder() if keep_source else journal.download_folder
        if not force:
            self._check_space(conversion, downloads)
        create_files(journal.model_folder, conversion)
        self._announce(conversion, downloads)
        for shard in self._source.shards.files:
            if not journal.converted(shard):
                self._convert(shard, headers, conversion, downloads)
            for done in (shard, *conversion.others[shard]):
                if not keep_source and not self._awaited(done, conversion):
                    self._source.release_shard(done, downloads)
        return self._seal(conversion)

    def _plan_conversion(self) -> tuple[Conversion, Mapping[str, Header]]:
        """Checks the checkpoint's form before a byte of weights moves, and plans the conversion."""
        check_text_files(self._small_files, self._source.origin.location)
        headers = self._source.headers()
        self._heed_pruning(headers)
        return self._conversion(self._family.tensors, headers, self._quantisation), headers

    def _heed_pruning(self, headers: Mapping[str, Header]) -> None:
        """Layers may have fewer experts than config.json says: then the one that is stored says how many."""
        plan = self._family.tensors
        rows = router_rows(plan, self._source.shards, headers, declared_by(self._config))
        config = pruned_config(self._config, plan.moe, rows)
        if config is not None:
            self._config, self._family = config, family_of(config)
            self._small_files["config.json"] = (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()

    def _conversion(self, plan: TensorPlan, headers: Mapping[str, Header], quantisation: Quantisation) -> Conversion:
        return plan_conversion(plan, self._source.shards, headers, quantisation, declared_by(self._config))

    @cached_property
    def _small_files(self) -> dict[str, bytes]:
        """The small files that the stored model takes over."""
        return {name: self._source.read_file(name) for name in self._source.kept_files()}

    def _say_sizes(self, conversion: Conversion, headers: Mapping[str, Header]) -> None:
        """Tells the sizes of a download before it begins."""
        folder = self._journal.download_folder
        fetch_bytes = sum(self._source.fetch_bytes(shard, folder) for shard in self._source.shards.files)
        if fetch_bytes:
            small = conversion
            if self._quantisation == KEEP:
                small = self._conversion(self._family.tensors, headers, SMALL)
            self._progress.sizes(fetch_bytes, conversion.total_bytes, small.total_bytes)

    def _awaited(self, shard: str, conversion: Conversion) -> bool:
        """Tells whether the shard has to be converted, or its scales are needed for one that has to."""
        return any(
            shard in (other, *conversion.others[other])
            for other in self._source.shards.files
            if not self._journal.converted(other)
        )

    def _convert(self, shard: str, headers: Mapping[str, Header], conversion: Conversion, downloads: Path) -> None:
        paths = {name: self._source.open_shard(name, downloads) for name in (shard, *sorted(conversion.others[shard]))}
        for name, path in paths.items():
            with errors_named(path, CheckpointError):
                if read_header(path) != headers[name]:
                    raise CheckpointError(f"{path} changed while the pull was being planned; repeat the pull")
        moves = conversion.moves[shard]
        self._progress.start(self._verb, shard, read_bytes(moves), 0)
        folder, advance = self._journal.model_folder, self._progress.advance
        losses = convert_shard(paths[shard], moves, folder, advance, paths, self._portions)
        self._source.check_unchanged()
        self._journal.record(shard, losses)
        self._progress.finish()

    def _seal(self, conversion: Conversion) -> StoredModel:
        source, folder = self._source, self._journal.model_folder
        conversion, planned = conversion.with_losses(self._journal.losses()), conversion.fallbacks
        for line in conversion.fallbacks:
            if line not in planned:
                self._progress.note(line)
        info = self._family.info(conversion.dtype)
        source_record = {
            "fingerprint": self._fingerprint,
            "requested": source.requested,
            "asked": json.dumps(self._asked.to_json()),
        }
        self._progress.start("verifying", self._name, conversion.total_bytes, 0)
        identifier = seal(
            folder, conversion, source.origin, info, self._small_files, source_record, self._progress.advance
        )
        self._progress.finish()
        source.check_unchanged()
        before = next((model.id for model in self._library.list() if model.name == self._name), identifier)
        stored = publish_model(self._library, folder, identifier, self._name, source.origin)
        share_files(self._library, stored)
        if before != identifier:
            self._progress.note(f"updated {self._name}: {before} is now {identifier}")
        return stored

    def _announce(self, conversion: Conversion, downloads: Path) -> None:
        """Announces the bytes of each step: fetching, converting, and reading back what was written."""
        fetched, fetched_before, converted, converted_before = 0, 0, 0, 0
        for shard in self._source.shards.files:
            copied = read_bytes(conversion.moves[shard])
            converted += copied
            if self._journal.converted(shard):
                converted_before += copied
            left = self._source.fetch_bytes(shard, downloads) if self._awaited(shard, conversion) else 0
            if left:
                fetched += self._source.shard_bytes(shard)
                fetched_before += self._source.shard_bytes(shard) - left
        self._progress.total("pulling", fetched, fetched_before)
        self._progress.total(self._verb, converted, converted_before)
        self._progress.total("verifying", conversion.total_bytes, 0)

    def _needed_bytes(self, conversion: Conversion, downloads: Path) -> int:
        journal = self._journal
        shards = [shard for shard in self._source.shards.files if not journal.converted(shard)]
        largest = max(
            (
                sum(self._source.fetch_bytes(each, downloads) for each in (shard, *conversion.others[shard]))
                for shard in shards
            ),
            default=0,
        )
        return int((max(0, conversion.total_bytes - journal.written_bytes()) + largest) * _SPACE_MARGIN)

    def _check_space(self, conversion: Conversion, downloads: Path) -> None:
        needed, free = self._needed_bytes(conversion, downloads), _free_bytes(self._library.home)
        if needed > free:
            raise DiskSpaceError(
                f"not enough disk space in {self._library.home}: {size_text(needed)} needed, "
                f"{size_text(free)} free; free some, set MOEINF_HOME, or use --force"
            )

    def _kept_folder(self) -> Path:
        """Returns the folder in which --keep-source leaves downloaded shards. A folder source downloads nothing."""
        origin = self._source.origin
        if origin.kind != "hub":
            return self._journal.download_folder
        folder = self._library.home / "sources" / origin.location.replace("/", "--") / origin.revision
        with errors_named(folder):
            make_folders(folder)
        return folder
