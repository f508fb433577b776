"""What memory can give, and what a token takes from it: the limit beside which a decode rate stands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from moeinf._native import memory_read_rate
from moeinf.config import RuntimeConfig
from moeinf.engine.build_context import open_kernels
from moeinf.hardware import machine
from moeinf.models.layers.decoder import HEAD
from moeinf.store.dense import dense_tensors
from moeinf.store.library import StoredModel
from moeinf.types import TensorSpec

_SPAN_BYTES: Final = 512 << 20
_LEAST_BYTES: Final = 128 << 20  # less would in part be read from caches
_REPEATS: Final = 5


def memory_bytes_per_s(config: RuntimeConfig) -> float:
    """Best rate of all threads together reading fresh memory: 512 MiB, or a quarter of what this process may still use.

    0 where that is too little to tell.
    """
    here = machine()
    span = min(_SPAN_BYTES, here.available_bytes // 4)
    if span < _LEAST_BYTES:
        return 0.0
    return memory_read_rate(open_kernels(config.threads or here.cores, config.isa), span, _REPEATS)


def weight_bytes_per_token(stored: StoredModel) -> int:
    """Bytes of weights, as they are stored, that one decode step reads: all dense ones, and top_k experts a layer.

    Of an embedding a token reads one row, unless it is the head too.
    """
    dense = {tensor.name: tensor.num_bytes for tensor in _dense(stored)}
    if HEAD in dense:
        dense = {name: num_bytes for name, num_bytes in dense.items() if not _is_embedding(name)}
    moe = stored.manifest.moe
    return sum(dense.values()) + moe.top_k * sum(tensor.num_bytes for tensor in _expert_parts(stored))


def formats_text(stored: StoredModel) -> str:
    """The format of most of the experts' bytes, and of most of the dense layers' if it differs: "q4_k, dense q8_0"."""
    experts = _main_format(_expert_parts(stored))
    dense = _main_format(t for t in _dense(stored) if t.name != HEAD and not _is_embedding(t.name) and len(t.shape) > 1)
    return experts if dense in (experts, "") else f"{experts}, dense {dense}"


def _is_embedding(name: str) -> bool:
    return name.endswith(("embed_tokens.weight", "shared.weight"))  # of decoders, and of encoder-decoders


def _dense(stored: StoredModel) -> tuple[TensorSpec, ...]:
    in_place = stored.manifest.in_place
    return in_place.dense_specs() if in_place else dense_tensors(stored.dense_path, stored.manifest.dense_formats)


def _expert_parts(stored: StoredModel) -> list[TensorSpec]:
    """Of one expert of each layer."""
    manifest = stored.manifest
    return [spec for layer in range(manifest.moe.num_layers) for spec in manifest.layout_of(layer).tensors]


def _main_format(tensors: Iterable[TensorSpec]) -> str:
    totals: dict[str, int] = {}
    for tensor in tensors:
        totals[tensor.dtype] = totals.get(tensor.dtype, 0) + tensor.num_bytes
    return max(totals, key=lambda name: totals[name], default="")
