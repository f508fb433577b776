"""Keys and values in blocks of q8_0: what is stored, and what is made of it, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from moeinf import _native
from moeinf.models.cpu.attention import NativeAttention
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.cpu.weights import HostMemory, NativeWeights
from moeinf.models.layers.attention.grouped import AttentionPart, attention_shapes
from moeinf.models.layers.attention.token_rows import KVState
from moeinf.models.layers.attention_config import AttentionConfig, AttentionSite, Scores, Sight
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.weights import StoredTensor
from moeinf.types import ByteArray, Float32Array
from tests.oracles.quantised_cache import attended, quantised, widened

HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 48, 20, 2, 64  # more heads in a group than go through at once


class Layer:
    """A layer without norm, positions and residual, whose keys and values are kept as q8_0."""

    def __init__(self, isa: str, window: int, sinks: bool = True) -> None:
        self.config = AttentionConfig(
            HIDDEN,
            HEADS,
            KV_HEADS,
            HEAD_DIM,
            1e-5,
            None,
            sight=Sight(window),
            scores=Scores(sinks="sinks" if sinks else None),
        )
        rng = np.random.default_rng(window)
        self.tensors: dict[str, Float32Array] = {
            name: rng.standard_normal(shape).astype(np.float32) / np.float32(4)
            for name, shape in attention_shapes(self.config, "a.").items()
        }
        stored = {n: StoredTensor(t.ravel().view(np.uint8), "f32", t.shape) for n, t in self.tensors.items()}
        self.layers = NativeLayers(_native.Kernels(2, isa), stored, "q8_0")
        self.attention = NativeAttention(
            self.layers.memory, AttentionPart(self.config, AttentionSite(0, "a.", None, 1.0))
        )

    def product(self, name: str, x: Float32Array) -> Float32Array:
        made: Float32Array = x @ self.tensors[f"a.{name}_proj.weight"].T
        return made


@pytest.mark.parametrize("isa", _native.available_isas())
@pytest.mark.parametrize("window", [5000, 90], ids=["all", "window"])
@pytest.mark.parametrize(("passes", "tolerance"), [((1, 6, 8, 1), 1e-5), ((600, 1, 40), 2e-2)], ids=["few", "many"])
def test_attention_to_a_quantised_cache_equals_its_twin(
    passes: tuple[int, ...], tolerance: float, window: int, isa: str
) -> None:
    layer, tokens = Layer(isa, window), sum(passes)
    given = np.random.default_rng(1).standard_normal((tokens, HIDDEN)).astype(np.float32)
    x = given.copy()
    cache = Cache([layer.attention.new_state(tokens + 3)], tokens + 3)
    for count in passes:
        place = slice(cache.length, cache.length + count)
        none = layer.layers.rotary(None, 1)(0, count, cache)
        layer.attention.add_to(x[place], cache, none)
        cache.advance(count)
    state: KVState[ByteArray] = cache.states[0]
    kept = []
    for memory, name in ((state.keys, "k"), (state.values, "v")):
        rows = memory.reshape(KV_HEADS, tokens + 3, -1)[:, :tokens].copy()
        made = layer.product(name, given).reshape(tokens, KV_HEADS, HEAD_DIM).transpose(1, 0, 2)
        twin = quantised(np.ascontiguousarray(made))
        assert np.abs(widened(rows.reshape(-1)) - widened(twin)).max() <= np.abs(made).max() / 120  # a step at most
        assert np.mean(rows.reshape(-1) == twin) > 0.99  # a product that is rounded otherwise may be a step off
        kept.append(widened(rows.reshape(-1)).reshape(KV_HEADS, tokens, HEAD_DIM))
    queries = layer.product("q", given).reshape(tokens, HEADS, HEAD_DIM).astype(np.float64)
    sinks = layer.tensors["a.sinks"].astype(np.float64)
    mixed = attended(queries, kept[0], kept[1], window, sinks).reshape(tokens, -1)
    expected = given + mixed @ layer.tensors["a.o_proj.weight"].T
    assert np.abs(x - expected).max() < tolerance * np.abs(expected).max()


@pytest.mark.parametrize("isa", _native.available_isas())
def test_numbers_without_a_scale_are_kept_as_zeros_and_what_is_not_finite_stays_so(isa: str) -> None:
    layer = Layer(isa, 10, sinks=False)
    cache = Cache([layer.attention.new_state(1)], 1)
    state: KVState[ByteArray] = cache.states[0]
    x = np.zeros((1, HIDDEN), np.float32)
    layer.attention.add_to(x, cache, layer.layers.rotary(None, 1)(0, 1, cache))
    assert not state.keys.any() and not x.any()
    x = np.full((1, HIDDEN), np.nan, np.float32)
    layer.attention.add_to(x, cache, layer.layers.rotary(None, 1)(0, 1, cache))
    assert np.isnan(x).all()


def test_rows_of_a_quantised_cache_are_copied_out_and_in() -> None:
    rng = np.random.default_rng(4)
    kept = HostMemory(NativeWeights(_native.Kernels(1), {}), "q8_0")
    state, other = (KVState(kept, KV_HEADS, HEAD_DIM, capacity) for capacity in (12, 20))
    assert state.row_bytes == HEAD_DIM // 32 * 34 and len(state.keys) == KV_HEADS * 12 * state.row_bytes
    for memory in (state.keys, state.values):
        memory[:] = rng.integers(0, 256, len(memory))
    rows = np.empty((state.planes, 5, state.row_bytes), np.uint8)
    state.save_rows(3, rows)
    other.load_rows(3, rows)
    for mine, theirs in ((state.keys, other.keys), (state.values, other.values)):
        shaped = mine.reshape(KV_HEADS, 12, -1), theirs.reshape(KV_HEADS, 20, -1)
        assert np.array_equal(shaped[0][:, 3:8], shaped[1][:, 3:8])
