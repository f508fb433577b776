"""Where each dense tensor of a stored model lies in its file, and whether its numbers can be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from moeinf._native import check_scales
from moeinf.errors import StoreError
from moeinf.store.files import errors_named
from moeinf.store.format import BLOCK_DTYPE, STORE_DTYPES, BlockTensor, TensorEntry, is_quantised, read_header
from moeinf.store.numbers import first_not_finite, plain_dtype
from moeinf.types import FORMAT_BLOCKS, TensorSpec

_NONE: Mapping[str, BlockTensor] = MappingProxyType({})


def dense_tensors(path: Path, formats: Mapping[str, BlockTensor] = _NONE) -> tuple[TensorSpec, ...]:
    """Returns the tensors of a dense file in file order; offset_bytes counts from the start of the file.

    formats: the manifest's dense_formats. Raises StoreError where the file is not as they say.
    """
    with errors_named(path):
        header = read_header(path, StoreError)
    for name in formats:
        if name not in header:
            raise StoreError(f"{path}: tensor {name!r} of the manifest is missing; pull the model again")
    return tuple(_spec(entry, formats.get(entry.name), path) for entry in header.values())


def _spec(entry: TensorEntry, blocks: BlockTensor | None, path: Path) -> TensorSpec:
    if blocks is None and entry.dtype in STORE_DTYPES:
        return TensorSpec(entry.name, STORE_DTYPES[entry.dtype], entry.shape, entry.offset_bytes, entry.num_bytes)
    if blocks is None or (entry.dtype, entry.shape) != (BLOCK_DTYPE, blocks.file_shape()):
        wanted = f"not the {blocks.format} of its manifest" if blocks else "which its manifest does not explain"
        raise StoreError(
            f"{path}: tensor {entry.name!r} has dtype {entry.dtype} and shape {list(entry.shape)}, "
            f"{wanted}; pull the model again"
        )
    return TensorSpec(entry.name, blocks.format, blocks.shape, entry.offset_bytes, entry.num_bytes)


def check_dense(path: Path, tensors: Sequence[TensorSpec], data: memoryview) -> None:
    """data: the file's bytes, as they lie in memory. Raises StoreError for the first block whose scale is no number."""
    for spec in tensors:
        check_part(path, spec, data[spec.offset_bytes :][: spec.num_bytes])


def check_part(path: Path, spec: TensorSpec, data: memoryview, first_block: int = 0) -> None:
    """Checks a part of a tensor in the same way, from block first_block on."""
    fault = scale_fault(spec, data, first_block)
    if fault:
        raise StoreError(f"{path}: {fault}; pull the model again")


def fault_of(spec: TensorSpec, data: memoryview, first: int = 0) -> str:
    """Names what is no number in a tensor, or in its part from block or element `first` on; "" where all is sound."""
    dtype = plain_dtype(spec.dtype)
    if dtype is None:
        return scale_fault(spec, data, first)
    bad = first_not_finite(data, dtype, spec.name)
    return f"tensor {spec.name!r}: element {first + bad} is NaN or infinite" * (bad >= 0)


def scale_fault(spec: TensorSpec, data: memoryview, first_block: int = 0) -> str:
    """Names the first block of a tensor (or of its part from first_block on) whose scale is no number; else ""."""
    if not is_quantised(spec.dtype):
        return ""
    weights, num_bytes = FORMAT_BLOCKS[spec.dtype]
    bad = check_scales(spec.dtype, data, len(data) // num_bytes, weights)
    return f"tensor {spec.name!r}: the scale of {spec.dtype} block {first_block + bad} is NaN or infinite" * (bad >= 0)
