"""The two files of an adapter, and those in a folder of this machine."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Protocol

from moeinf.errors import CheckpointError
from moeinf.pull.source import ADAPTER_CONFIG
from moeinf.store.files import errors_named, open_regular, read_small
from moeinf.store.format import Header, read_header

PREFIX = "base_model.model."  # of every tensor: PEFT's model, and in it the one that is adapted
WEIGHTS_FILE = "adapter_model.safetensors"
_MOST_CONFIG_BYTES = 1 << 20
_INSTEAD = {  # other files of weights, and what to do
    "adapter_model.bin": "moeinf reads no pickled files: save the adapter again with PEFT",
    "adapters.safetensors": "it is an adapter of mlx-lm, which `mlx_lm.fuse` merges into its model",
}


class AdapterFiles(Protocol):
    """config: the bytes of adapter_config.json."""

    config: bytes

    @property
    def where(self) -> str:
        """What the adapter is called in messages."""
        ...

    @property
    def fingerprint(self) -> str:
        """A text that differs when a byte of the adapter may differ."""
        ...

    def header(self) -> Header:
        """Of the weights, without the weights."""
        ...

    def weights(self, folder: Path) -> Path:
        """The weights as a whole and checked file, downloaded into the folder if need be."""
        ...


def check_names(names: frozenset[str], where: str) -> None:
    """Raises CheckpointError where files of an adapter are missing, in words that tell what is there instead."""
    if ADAPTER_CONFIG not in names:
        kind = "a model, no adapter: pull it by itself" if "config.json" in names else "no adapter of PEFT"
        raise CheckpointError(f"{where} has no {ADAPTER_CONFIG}: it is {kind}")
    if WEIGHTS_FILE not in names:
        remedy = next((words for other, words in _INSTEAD.items() if other in names), "fetch it again")
        raise CheckpointError(f"{where} has no {WEIGHTS_FILE}; {remedy}")


class AdapterFolder:
    """As AdapterFiles, in a folder of this machine."""

    def __init__(self, folder: Path, where: str = "") -> None:
        self._folder, self.where = folder, where or str(folder)
        with errors_named(folder, CheckpointError):
            check_names(frozenset(os.listdir(folder)), self.where)
            self.config = read_small(folder / ADAPTER_CONFIG, _MOST_CONFIG_BYTES)

    @property
    def fingerprint(self) -> str:
        """By size, time and inode, as of shards: reading the weights would take as long as merging them."""
        path = self._folder / WEIGHTS_FILE
        with errors_named(path, CheckpointError):
            os.close(open_regular(path))
            info = path.stat()
        state = f"{info.st_size} {info.st_mtime_ns} {info.st_ino} ".encode()
        return hashlib.sha256(state + self.config).hexdigest()

    def header(self) -> Header:
        path = self._folder / WEIGHTS_FILE
        with errors_named(path, CheckpointError):
            return read_header(path)

    def weights(self, folder: Path) -> Path:
        return self._folder / WEIGHTS_FILE
