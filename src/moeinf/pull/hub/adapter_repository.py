"""An adapter in a repository of the Hub, pinned to a commit and checked as a checkpoint is."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import constants, try_to_load_from_cache

from moeinf.pull.events import PullProgress
from moeinf.pull.hub.hub_errors import offline_error
from moeinf.pull.hub.remote import Patience
from moeinf.pull.hub.repository import HubRepository, check_repo
from moeinf.pull.lora.adapter_files import WEIGHTS_FILE, check_names
from moeinf.pull.source import ADAPTER_CONFIG
from moeinf.store.format import Header
from moeinf.store.manifest import ModelSource
from moeinf.store.naming.names import written


def cached_adapter(source: ModelSource) -> Path | None:
    """With HF_HUB_OFFLINE the folder in the Hub's cache; else None. Raises HubError where it is not there."""
    if not constants.HF_HUB_OFFLINE:
        return None
    check_repo(source.location, source.revision)
    found = [
        try_to_load_from_cache(source.location, name, revision=source.revision or None)
        for name in (ADAPTER_CONFIG, WEIGHTS_FILE)
    ]
    if not all(isinstance(path, str) for path in found):
        raise offline_error(source.location)
    return Path(str(found[0])).parent


class AdapterRepository:
    """As AdapterFiles. Used from one thread."""

    def __init__(self, source: ModelSource, token: str | None, progress: PullProgress) -> None:
        check_repo(source.location, source.revision)
        self.where = written(source)
        self._repository = HubRepository(source.location, source.revision, token, progress, Patience())
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
