"""Sizes that no memory could hold, lengths that disagree and objects of another type are errors, before anything runs.

tests/fuzz/native_calls.py looks for more of them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moeinf import _native
from moeinf.errors import ExpertReadError
from moeinf.runtime.cache.stats import CacheStats
from moeinf.types import AttentionSizes, DeltaSizes, LatentSizes, MambaSizes, PassShape

HUGE = 2**62
PASS = PassShape("bf16", "bf16", 8, 100, 2)
LONG = PassShape("bf16", "bf16", 2**31 - 1, 2**31 - 1, 2)
PARTS: Any = {name: ("bf16", 2**30, 2**30, 0) for name in ("gate", "up", "down")}


def table() -> _native.SlotTable:
    classes = np.zeros(4, np.uint8)
    return _native.SlotTable(0, [4096], classes, np.zeros(8, np.uint8), np.zeros(8, np.uint8), np.zeros(8, np.int64))


def cache() -> _native.ExpertCache:
    policy = SimpleNamespace(keep_scores=lambda layer: np.zeros(8))
    return _native.ExpertCache(table(), 2, 4, policy, CacheStats())


def loader() -> _native.Loader:
    reads = _native.PythonReads(SimpleNamespace(), lambda *given: None, None, 4096)
    return _native.Loader(cache(), reads, 1)


def visit(experts: list[int], counts: list[int], num_tokens: int) -> None:
    """It is refused before it asks for anything: cache and loader need not belong together."""
    lap: Any = SimpleNamespace(lap=lambda name: 0.0)
    visits = _native.Visits(cache(), loader(), _native.IdleWindow(), lap, lambda failure: ExpertReadError("no read"))
    _native.Visit(visits, 0, np.array(experts), np.array(counts), num_tokens)


def kernels() -> _native.Kernels:
    return _native.Kernels(1)


def heads(capacity: int, length: int) -> None:
    layer = _native.HeadsLayer(
        kernels(), num_heads=2, num_kv_heads=2, head_dim=2, window=0, rotary_dim=0, interleaved=False, scale=1.0
    )
    x, turns, room = np.zeros((1, 4), np.float32), np.zeros((1, 0), np.float32), np.zeros(64, np.uint8)
    layer.run(x, x.copy(), x.copy(), room, room.copy(), "f32", capacity, length, turns, turns, x.copy())


TALL = np.zeros((2**40, 0), np.float32)
NARROW = np.zeros(0, np.float32)
MATRIX = _native.Matrix(np.zeros(34, np.uint8), "q8_0", 1, 32)
BROAD = _native.Matrix(np.zeros((1 << 20) + 2, np.uint8), "bf16", 1, (1 << 19) + 1)
REFUSED: dict[str, Callable[[], object]] = {
    "a matrix of 2^64 weights": lambda: _native.Matrix(np.zeros(0, np.uint8), "f32", 2**32, 2**32),
    "bytes of 2^64 weights": lambda: _native.check_scales("f32", np.zeros(0, np.uint8), 2**32, 2**32),
    "a pass of fewer than no tokens": lambda: kernels().begin_pass(-1),
    "a thread too many": lambda: _native.Kernels(2**16),
    "a width of 2^62": lambda: _native.Kernels.linear_workspace_bytes(HUGE, PASS),
    "a pass of fewer than no threads": lambda: _native.Kernels.panel_bytes(PassShape("bf16", "bf16", 1, 1, -1)),
    "a router of 2^62 experts": lambda: _native.RouterLayer.workspace_bytes(64, HUGE, PASS),
    "experts of 2^60 weights": lambda: _native.ExpertKernel.workspace_bytes(PARTS, 2, PASS),
    "a choice of 2^62 experts": lambda: _native.ExpertKernel.workspace_bytes(
        {name: ("bf16", 32, 32, 0) for name in ("up", "down")}, HUGE, PASS
    ),
    "heads of 2^62 numbers": lambda: _native.AttentionLayer.workspace_bytes(
        AttentionSizes(64, 2**31 - 1, 1, 2**31 - 1, 0, False), PASS
    ),
    "no heads": lambda: _native.AttentionLayer.workspace_bytes(AttentionSizes(64, 4, 0, 16, 0, False), PASS),
    "heads that share no keys": lambda: _native.AttentionLayer.workspace_bytes(
        AttentionSizes(64, 2, 4, 16, 0, False), PASS
    ),
    "no heads of latents": lambda: _native.LatentLayer.workspace_bytes(LatentSizes(0, 8, 8, 8, 8, 5), PASS),
    "latents of 2^62 numbers": lambda: _native.LatentLayer.workspace_bytes(LatentSizes(2**31 - 1, 8, 8, 8, 8), LONG),
    "no key heads": lambda: _native.DeltaLayer.workspace_bytes(DeltaSizes(64, 0, 4, 16, 16), PASS),
    "no groups": lambda: _native.MambaLayer.workspace_bytes(MambaSizes(64, 4, 16, 0, 16), PASS),
    "a capacity that wraps": lambda: heads(2**62, 0),
    "a length that wraps": lambda: heads(4, 2**63 - 1),
    "rows without columns": lambda: _native.rms_norm(kernels(), TALL, NARROW, 1e-6, TALL.copy()),
    "repeats without an end": lambda: _native.memory_read_rate(kernels(), 1 << 20, 2**31 - 1),
    "products without an end": lambda: _native.product_read_rates(kernels(), MATRIX, 1, 1 << 20, 2**31 - 1),
    "a product of fewer than no bytes": lambda: _native.product_read_rates(kernels(), MATRIX, 1, -1, 1),
    "a product of no room for the matrix": lambda: _native.product_read_rates(kernels(), BROAD, 1, 1 << 20, 1),
    "a product of no activations": lambda: _native.product_read_rates(kernels(), MATRIX, 0, 1 << 20, 1),
    "a product of 2^62 activations": lambda: _native.product_read_rates(kernels(), MATRIX, HUGE, 1 << 20, 1),
    "cached products without an end": lambda: _native.cached_product_rates(kernels(), MATRIX, 1, 2**31 - 1),
    "no cached products": lambda: _native.cached_product_rates(kernels(), MATRIX, 1, 0),
    "a cached product of nine activations": lambda: _native.cached_product_rates(kernels(), MATRIX, 9, 1),
    "layers without experts": lambda: _native.rank_prefetches(
        np.zeros((2**40, 0)),
        num_layers=3,
        eps=0.1,
        states=np.zeros(8, np.uint8),
        absent=0,
        first_key=0,
        at_least=0.0,
        count=3,
    ),
    "a source that never comes": lambda: _native.NextUseScores(
        np.ones((2, 4)), np.ones((2, 4)), encoder_layers=1, next_source=2**63 - 1
    ),
    "counts beyond any sum": lambda: cache().begin_layer(0, [0], np.array([2**63 - 1]), many=False),
    "a model of 2^62 experts": lambda: _native.UseModel.num_bytes(1, HUGE),
    "more counts than keys": lambda: cache().begin_layer(0, [0], np.ones(600, np.int64), many=False),
    "fewer priorities than keys": lambda: loader().submit([0, 1], [1.0]),
    "fewer counts than experts": lambda: visit([0, 1], [1], 1),
    "a visit of no tokens": lambda: visit([0], [1], 0),
    "a visit of an expert that there is not": lambda: visit([4], [1], 2),
}


@pytest.mark.parametrize("refused", list(REFUSED.values()), ids=list(REFUSED))
def test_what_cannot_be_is_a_value_error(refused: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        refused()


def test_nothing_is_written_where_lengths_disagree() -> None:
    offsets = np.full(8, 7, np.int64)
    with pytest.raises(ValueError, match="differ in length"):
        _native.SlotTable(0, [4096], np.zeros(4, np.uint8), np.zeros(8, np.uint8), np.zeros(8, np.uint8), offsets[:7])
    assert (offsets == 7).all()


def test_an_object_of_another_type_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        _native.RouterLayer(kernels(), object(), None, 1e-6, 1, True)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _native.IdleWindow(lambda: None)  # type: ignore[arg-type,return-value]


def test_a_part_of_no_whole_blocks_is_refused() -> None:
    parts: Any = {"gate": ("iq1_m", 32, 64, 0), "up": ("bf16", 32, 64, 0), "down": ("bf16", 64, 32, 0)}
    with pytest.raises(ValueError, match="whole number of blocks"):
        _native.ExpertKernel.workspace_bytes(parts, 2, PASS)


def test_experts_may_lie_where_their_outputs_go() -> None:
    parts: Any = {name: ("f32", 2, 2, 16 * i) for i, name in enumerate(("gate", "up", "down"))}
    kernel = _native.ExpertKernel(kernels(), np.zeros(48, np.uint8), parts)
    ids, one = np.array([[0], [1], [1]]), np.ones((3, 1), np.float32)
    kernel.begin(np.ones((3, 2), np.float32), ids, one)
    kernel.put(np.array([0, 1]), np.ones((3, 2), np.float32))
    memory = np.zeros(8, np.float32)
    experts = memory[:4].view(np.int64)  # 0 and 1
    experts[1] = 1
    kernel.get(experts, memory[:6].reshape(3, 2))
    assert (memory[:6] == 1).all()
