"""The layer of a stored model that guesses at tokens (MTP): `pull` keeps it as it was published, here it is stored in
the formats of its model, so that it can run (moeinf.models.mtp)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import NO_OPTIONS
from moeinf.errors import CheckpointError, StoreError, UsageError
from moeinf.gguf.config import config_of
from moeinf.gguf.header import read_gguf
from moeinf.gguf.mtp_view import mtp_view, without_lent
from moeinf.models.mtp import MODEL_TYPE, mtp_config, one_layer
from moeinf.pull.checkpoint.checkpoint_pull import CheckpointPull
from moeinf.pull.events import PullProgress, SilentProgress
from moeinf.pull.gguf.index import discard, make_index, write_model
from moeinf.pull.origins import Origin
from moeinf.pull.source import Shards, is_kept, most_bytes
from moeinf.pull.task import PullTask
from moeinf.store.files import errors_named, parse_json_object, read_small
from moeinf.store.format import AHEAD_FILE, Header, read_header
from moeinf.store.library import Library, StoredModel
from moeinf.store.manifest import ModelSource
from moeinf.store.mtp_store import mtp_fingerprint, stored_mtp
from moeinf.store.naming.names import MTP, mtp_name
from moeinf.store.processes.partials import partial_folder, pull_lock


class KeptLayers:
    """moeinf.pull.source.Source: what a store keeps of its checkpoint beside the model that it runs."""

    requested = ""
    told: tuple[str, ...] = ()
    shards = Shards((AHEAD_FILE,), None)

    def __init__(self, stored: StoredModel) -> None:
        """Raises UsageError where there is none, UnsupportedModelError for one that moeinf does not run."""
        self._path, self._id = stored.path, stored.id
        if stored.manifest.ahead is None:
            raise _none(stored)
        self.origin, self.fingerprint = ModelSource("folder", str(stored.path)), f"mtp of {stored.id}"
        config = parse_json_object(self._read("config.json"), "config.json", StoreError)
        self._config = json.dumps(mtp_config(config), indent=2, ensure_ascii=False).encode()

    def kept_files(self) -> list[str]:
        with errors_named(self._path, CheckpointError):
            return sorted(entry.name for entry in self._path.iterdir() if is_kept(entry.name))

    def read_file(self, name: str) -> bytes:
        return self._config if name == "config.json" else self._read(name)

    def chat_code(self) -> str:
        return ""

    def _read(self, name: str) -> bytes:
        with errors_named(self._path / name, CheckpointError):
            return read_small(self._path / name, most_bytes(name))

    def shard_bytes(self, shard: str) -> int:
        with errors_named(self._path / shard, CheckpointError):
            return (self._path / shard).stat().st_size

    def fetch_bytes(self, shard: str, folder: Path) -> int:
        return 0

    def copied_bytes(self, shard: str, folder: Path) -> int:
        return 0

    def headers(self) -> Mapping[str, Header]:
        with errors_named(self._path / AHEAD_FILE, CheckpointError):
            return {AHEAD_FILE: read_header(self._path / AHEAD_FILE)}

    def open_shard(self, shard: str, folder: Path) -> Path:
        return self._path / shard

    def release_shard(self, shard: str, folder: Path, *, keep: bool) -> None:
        """Does nothing, as nothing was written."""

    def check_unchanged(self) -> None:
        """What a store has does not change: another state of the checkpoint has another folder."""


def ensure_draft(stored: StoredModel, config: RuntimeConfig, progress: PullProgress | None = None) -> None:
    """Makes the layer of a stored model ready where it is to guess (--draft mtp). Raises as `ensure_mtp`."""
    if config.speculation.draft == MTP:
        with errors_named(stored.home):
            ensure_mtp(stored, Library(stored.home), progress)


def ensure_mtp(stored: StoredModel, library: Library, progress: PullProgress | None = None) -> StoredModel:
    """The layer of a stored model that guesses, in a store of its own, which is made where there is none.

    Of GGUF files nothing is copied. Raises as KeptLayers, and as `pull`.
    """
    found = stored_mtp(stored, library)
    if found is not None:
        return found
    make = _of_files if stored.manifest.in_place is not None else _of_the_store
    return make(stored, library, progress or SilentProgress())


def _of_the_store(stored: StoredModel, library: Library, progress: PullProgress) -> StoredModel:
    source, name = KeptLayers(stored), _free_name(stored, library)
    origin = Origin(source.origin, name, stored.manifest.formats.asked)
    return CheckpointPull(PullTask(origin, name, None, NO_OPTIONS, library, progress), source).run()


def _of_files(stored: StoredModel, library: Library, progress: PullProgress) -> StoredModel:
    """Of GGUF files, which stay where they are."""
    first = stored.shard_paths[0]
    view = mtp_view(read_gguf(first))
    if view is None:
        raise _none(stored)
    config, source = one_layer(config_of(view)), ModelSource("folder", str(stored.path))
    index = make_index(without_lent(view), source, str(first.parent), progress.note, config=config)
    name, folder = _free_name(stored, library), partial_folder(library.home, f"mtp of {stored.id}")
    with pull_lock(folder, name, progress.note):
        try:
            record = {"fingerprint": mtp_fingerprint(stored), "requested": ""}
            return write_model(library, folder / "model", name, index, record)
        finally:
            discard(folder)


def _free_name(stored: StoredModel, library: Library) -> str:
    """The name of the layer, which one of an earlier state of the model gives up."""
    name = mtp_name(stored.name)
    held = library.named(name)
    if held is not None and held.manifest.info.architecture == MODEL_TYPE:
        library.remove(name)
    return name


def _none(stored: StoredModel) -> UsageError:
    return UsageError(
        f"--draft mtp: {stored.name} has no layer that guesses tokens; leave it out, or name a small model"
    )
