"""Where each dense tensor of a stored model lies in its file."""

from __future__ import annotations

from pathlib import Path

from moeinf.errors import StoreError
from moeinf.store.files import errors_named
from moeinf.store.format import STORE_DTYPES, read_header
from moeinf.types import TensorSpec


def dense_tensors(path: Path) -> tuple[TensorSpec, ...]:
    """Tensors of a dense file in file order; offset_bytes counts from the start of the file. Raises StoreError."""
    with errors_named(path):
        header = read_header(path, StoreError)
    for entry in header.values():
        if entry.dtype not in STORE_DTYPES:
            raise StoreError(f"{path}: tensor {entry.name!r} has dtype {entry.dtype}; pull the model again")
    return tuple(TensorSpec(e.name, STORE_DTYPES[e.dtype], e.shape, e.offset_bytes, e.num_bytes)
                 for e in header.values())
