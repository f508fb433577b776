"""Reads ranges of a file of weights."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from moeinf.errors import CheckpointError
from moeinf.store.files import errors_named, open_regular, read_fully
from moeinf.types import ByteArray


class WeightFile:
    """A file of which ranges are read. Raises CheckpointError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with errors_named(path, CheckpointError):
            self._fd = open_regular(path)

    def read(self, offset: int, num_bytes: int) -> ByteArray:
        data = np.empty(num_bytes, np.uint8)
        with errors_named(self._path, CheckpointError):
            read_fully(self._fd, data.data, offset, self._path)
        return data

    def close(self) -> None:
        os.close(self._fd)
