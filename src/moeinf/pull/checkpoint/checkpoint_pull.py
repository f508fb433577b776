"""The pull of a checkpoint: joins source, tensor plan of the architecture, conversion and store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from moeinf.errors import CheckpointError, DiskSpaceError, UsageError
from moeinf.pull.checkpoint.checkpoint_sizes import Sizes
from moeinf.pull.checkpoint.conversion_plan import Conversion
from moeinf.pull.checkpoint.convert import convert_shard, create_files, read_bytes
from moeinf.pull.checkpoint.journal import Journal
from moeinf.pull.checkpoint.seal import seal
from moeinf.pull.checkpoint.small_files import SmallFiles
from moeinf.pull.checkpoint.tensor_reading import Reading
from moeinf.pull.events import Verb
from moeinf.pull.own_template import give_template
from moeinf.pull.source import Source
from moeinf.pull.steps import Headers, PlannedFile, PullPlan, free_bytes
from moeinf.pull.task import PullTask
from moeinf.store.files import errors_named, make_folders, parse_json_object
from moeinf.store.format import Header, read_header
from moeinf.store.library import StoredModel
from moeinf.store.manifest import Manifest, ModelSource
from moeinf.store.processes.partials import PulledAs, partial_folder, pull_lock
from moeinf.store.quantisation import FITTED, KEEP, SMALL, Quantisation
from moeinf.store.sharing import share_files
from moeinf.text.quantities import shortage_text
from moeinf.text.tokenizer import beyond_the_embedding, check_text_files, token_kinds_of

_GENERATION = "generation_config.json"


class CheckpointPull:
    """Converts a checkpoint; an interrupted one goes on where it stopped."""

    TAKES: Final = ("quant",)

    def __init__(self, task: PullTask, source: Source) -> None:
        task.require(*self.TAKES)
        quantisation, origin = task.quantisation, task.origin
        if quantisation == FITTED:
            raise UsageError(
                f"{task.name} was made by measuring; pull its checkpoint again with --size, --quant BITS or --calibrate"
            )
        self._library, self._name, self._origin, self._quantisation = task.library, task.name, origin, quantisation
        self._verb: Verb = "converting" if quantisation == KEEP else "quantising"
        self._progress, self._options, self._portions = task.progress, task.options, task.portions
        self._folder = partial_folder(self._library.home, quantisation.of(origin.locator))
        self._library.check_origin(self._name, origin.source)
        self._source = source
        self._fingerprint = quantisation.of(source.fingerprint)
        self._asked = PulledAs(self._name, origin.source, quantisation, origin.adapter)
        self._journal = Journal(self._folder, self._asked, self._fingerprint)
        self._reading = Reading(source, self._journal)
        self._sizes = Sizes(source, self._journal)
        self._small_files = SmallFiles(source)
        self._of_text: tuple[str, ...] = ()  # what to tell of the tokenizer

    def headers(self) -> Headers:
        headers = self._source.headers()
        self._reading.heed(headers)
        conversion = self._conversion(headers, self._quantisation)
        manifest = Manifest(
            self._source.origin,
            self._reading.info(conversion),
            conversion.moe,
            conversion.layout,
            (),
            (),
            conversion.formats,
        )
        generation = {}
        if _GENERATION in self._source.kept_files():
            generation = parse_json_object(self._source.read_file(_GENERATION), _GENERATION, CheckpointError)
        return Headers(self._reading.config, generation, manifest, conversion.dense, conversion.total_bytes)

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
        needed = 0 if done else self._sizes.needed(conversion, downloads, self._reading.together)
        return PullPlan(
            self._name,
            source.origin,
            files,
            conversion.total_bytes,
            needed,
            free_bytes(self._library.home),
            bool(done),
            (*conversion.formats.fallbacks, *self._small_files.told),
        )

    def run(self) -> StoredModel:
        # A work folder is there while a pull is under way, or was killed; then the lock decides what is left to do.
        stored = None if self._folder.exists() else self._up_to_date()
        if stored is None:
            with pull_lock(self._folder, self._name, self._progress.note, self._progress.waiting):
                stored = self._up_to_date() or self._publish_made()
                if stored is None:
                    stored = self._make()
                self._journal.close()
        return stored

    def _up_to_date(self) -> StoredModel | None:
        """Returns the model of this name if it was made of this very state of the source."""
        for model in self._library.made_of(self._fingerprint):
            if model.name == self._name:
                give_template(model, self._progress.note, self._source.chat_code)
                self._progress.stage(f"{self._name} is up to date")
                return model
        return None

    def _publish_made(self) -> StoredModel | None:
        """Names the model that was made of this source under another name, or by a pull killed at its last step."""
        made = self._library.made_of(self._fingerprint)
        if not made:
            return None
        with errors_named(self._library.home), self._library.lock():
            return self._library.bind(self._name, made[0].id, revision=self._origin.source.revision)

    def _make(self) -> StoredModel:
        conversion, headers = self._plan_conversion()
        journal, downloads = self._journal, self._journal.download_folder
        if self._options.keep_source and self._source.origin.kind == "hub":
            downloads = _kept_folder(self._library.home, self._source.origin)
        if not self._reading.compared:
            self._check_space(conversion, downloads)
            journal.begin()
            self._reading.heed_copies(headers, downloads)
            conversion = self._conversion(headers, self._quantisation)
        self._say_sizes(conversion, headers)
        notice = journal.open(conversion)
        if notice:
            self._progress.note(notice)
        for line in (*conversion.formats.fallbacks, *self._small_files.told):
            self._progress.note(line)
        self._check_space(conversion, downloads)
        create_files(journal.model_folder, conversion)
        for verb, num_bytes, done_bytes in self._sizes.steps(conversion, downloads, self._verb):
            self._progress.total(verb, num_bytes, done_bytes)
        for shard in self._source.shards.files:
            if not journal.converted(shard):
                self._convert(shard, headers, conversion, downloads)
            for done in (shard, *conversion.others[shard]):
                if not self._sizes.awaited(done, conversion):
                    self._source.release_shard(done, downloads, keep=self._options.keep_source)
        return self._seal(conversion)

    def _plan_conversion(self) -> tuple[Conversion, Mapping[str, Header]]:
        """Checks the checkpoint's form before a byte of weights moves, and plans the conversion."""
        files, where = self._files, self._source.origin.location
        num_ids = check_text_files(files, where)
        self._reading.heed_tokenizer(lambda: token_kinds_of(files, where))
        headers = self._source.headers()
        self._reading.heed(headers)
        self._of_text = (*beyond_the_embedding(num_ids, self._reading.family.info("bf16").vocab_size),)
        return self._conversion(headers, self._quantisation), headers

    def _conversion(self, headers: Mapping[str, Header], quantisation: Quantisation) -> Conversion:
        return self._reading.conversion(headers, quantisation, (*self._source.told, *self._of_text))

    @property
    def _files(self) -> dict[str, bytes]:
        """The small files of the stored model."""
        return self._small_files.all | self._reading.own_files

    def _say_sizes(self, conversion: Conversion, headers: Mapping[str, Header]) -> None:
        """Tells the sizes of a download before it begins."""
        folder = self._journal.download_folder
        fetch_bytes = sum(self._source.fetch_bytes(shard, folder) for shard in self._source.shards.files)
        if fetch_bytes:
            small = conversion
            if self._quantisation == KEEP:
                small = self._conversion(headers, SMALL)
            self._progress.sizes(fetch_bytes, conversion.total_bytes, small.total_bytes)

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
        conversion, planned = conversion.with_losses(self._journal.losses()), conversion.formats.fallbacks
        for line in conversion.formats.fallbacks:
            if line not in planned:
                self._progress.note(line)
        info = self._reading.info(conversion)
        source_record = {
            "fingerprint": self._fingerprint,
            "requested": source.requested,
            "asked": json.dumps(self._asked.to_json()),
        }
        self._progress.start("verifying", self._name, conversion.total_bytes, 0)
        identifier = seal(folder, conversion, source.origin, info, self._files, source_record, self._progress.advance)
        self._progress.finish()
        source.check_unchanged()
        before = next((model.id for model in self._library.list() if model.name == self._name), identifier)
        stored = self._library.publish(folder, identifier, self._name, self._origin.source)
        share_files(self._library, stored)
        if before != identifier:
            self._progress.note(f"updated {self._name}: {before} is now {identifier}")
        return stored

    def _check_space(self, conversion: Conversion, downloads: Path) -> None:
        """Raises DiskSpaceError where there is too little room, and --force was not given."""
        needed = self._sizes.needed(conversion, downloads, self._reading.together)
        if not self._options.force and needed > (free := free_bytes(self._library.home)):
            raise DiskSpaceError(
                f"not enough disk space in {self._library.home}: {shortage_text(needed, free)}; free some, set "
                "MOEINF_HOME, or use --force"
            )


def _kept_folder(home: Path, source: ModelSource) -> Path:
    """Returns the folder in which --keep-source leaves the shards that it downloads from the Hub."""
    folder = home / "sources" / source.location.replace("/", "--") / source.revision
    with errors_named(folder):
        make_folders(folder)
    return folder
