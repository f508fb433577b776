"""An adapter in a repository of the Hub, pinned to a commit and checked as a checkpoint is."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import constants, try_to_load_from_cache

from moeinf.gguf.header import join_parts, parse_gguf
from moeinf.pull.events import PullProgress
from moeinf.pull.gguf.gguf_files import choose
from moeinf.pull.hub.hub_errors import offline_error
from moeinf.pull.hub.remote import Patience
from moeinf.pull.hub.repository import HubRepository, check_repo
from moeinf.pull.lora.adapter_files import WEIGHTS_FILE, check_names
from moeinf.pull.lora.gguf_adapter import GgufAdapter
from moeinf.pull.source import ADAPTER_CONFIG
from moeinf.store.format import Header
from moeinf.store.manifest import ModelSource
from moeinf.store.naming.gguf_models import model_files
from moeinf.store.naming.names import written


def cached_adapter(source: ModelSource) -> Path | None:
    """With HF_HUB_OFFLINE the folder of PEFT's adapter in the Hub's cache; else None.

    Raises HubError where it is not there.
    """
    if not constants.HF_HUB_OFFLINE or source.file:
        return None
    check_repo(source.location, source.revision)
    found = [
        try_to_load_from_cache(source.location, name, revision=source.revision or None)
        for name in (ADAPTER_CONFIG, WEIGHTS_FILE)
    ]
    if not all(isinstance(path, str) for path in found):
        raise offline_error(source.location)
    return Path(str(found[0])).parent


def open_repository(source: ModelSource, token: str | None, progress: PullProgress) -> AdapterRepository | GgufAdapter:
    """Of PEFT where the repository has such an adapter and no file is named, else a GGUF file.

    Raises CheckpointError and UnsupportedModelError where it is no adapter, HubError.
    """
    check_repo(source.location, source.revision)
    repository, where = HubRepository(source.location, source.revision, token, progress, Patience()), written(source)
    files = model_files(repository.names)
    if not source.file and (ADAPTER_CONFIG in repository.names or not files):
        return AdapterRepository(repository, where)
    file = choose(repository.names, source.file, where)
    header = parse_gguf(repository.reader(file), repository.num_bytes(file), where)
    return GgufAdapter(
        join_parts([(Path(file), header)]),
        where,
        lambda: f"{repository.fingerprint}:{file}",
        lambda folder: repository.in_cache(file) or repository.fetch(file, folder),
    )


class AdapterRepository:
    """As AdapterFiles. Used from one thread."""

    def __init__(self, repository: HubRepository, where: str) -> None:
        self.where, self._repository = where, repository
        check_names(frozenset(self._repository.names), self.where)
        self.config = self._repository.read_file(ADAPTER_CONFIG)
        self._weights: Path | None = None  # once they are here, as each shard asks for them

    @property
    def fingerprint(self) -> str:
        return self._repository.fingerprint

    def header(self) -> Header:
        return self._repository.header(WEIGHTS_FILE)

    def weights(self, folder: Path) -> Path:
        if self._weights is None:
            self._weights = self._repository.in_cache(WEIGHTS_FILE) or self._repository.fetch(WEIGHTS_FILE, folder)
        return self._weights
