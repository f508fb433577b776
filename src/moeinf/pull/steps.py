"""What every pull consists of, and what is known of it before it begins."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from moeinf.store.files import errors_named
from moeinf.store.library import StoredModel
from moeinf.store.manifest import Manifest, ModelSource
from moeinf.types import JsonMapping, TensorSpec


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


@dataclass(frozen=True, slots=True)
class Headers:
    """What the headers of a source say of the model that a pull of it would store."""

    config: JsonMapping  # config.json
    generation: JsonMapping  # generation_config.json; {} where there is none
    manifest: Manifest  # without files and checksums
    dense: tuple[TensorSpec, ...]  # of the dense file; () where the weights stay in GGUF files
    store_bytes: int  # of all weights


class Steps(Protocol):
    """A pull: of a GGUF file of this machine, of GGUF files of the Hub, or of a checkpoint."""

    def plan(self) -> PullPlan: ...

    def headers(self) -> Headers: ...

    def run(self) -> StoredModel: ...


def free_bytes(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    with errors_named(folder):
        return shutil.disk_usage(folder).free
