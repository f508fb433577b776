"""The native Mamba-2 against models.layers.recurrent.mamba2 in numpy, and that against its formula."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from moeinf import _native
from moeinf.models.cpu.mamba import NativeMamba2
from moeinf.models.cpu.math import NumpyMath
from moeinf.models.cpu.weights import HostMemory, NativeWeights
from moeinf.models.layers.attention_config import AttentionSite
from moeinf.models.layers.kv_cache import Cache, Span
from moeinf.models.layers.recurrent.mamba2 import CHUNK, Mamba2, Mamba2Part, Scan
from moeinf.models.layers.recurrent.mamba_config import MambaConfig, mamba_shapes
from moeinf.models.layers.recurrent.state import RecurrentState
from moeinf.models.layers.weights import StoredTensor
from moeinf.types import Float32Array

PLAIN = MambaConfig(
    hidden_size=64, num_heads=4, head_dim=32, num_groups=2, state_size=16, kernel=4, norm_eps=1e-5, conv_bias=True
)
CONFIGS = {
    "whole vectors": replace(PLAIN, head_dim=64, state_size=32),
    "parts of vectors": replace(PLAIN, hidden_size=40, head_dim=27, state_size=13),
    "several vectors and a part": replace(PLAIN, head_dim=75, state_size=7),
    "a group a head, no bias": replace(PLAIN, num_groups=4, head_dim=5, conv_bias=False),
    "biased projections": replace(PLAIN, biased=True),
    "more channels than a task takes": replace(PLAIN, num_groups=1, num_heads=6, head_dim=96, kernel=2),
}
LENGTHS = (1, 2, 63, 65, 200)  # the last of several native passes, and of two slices of the twin's
CLOSE = 2e-5
SITE = AttentionSite(0, "m.", "front.weight", residual=0.7)
Layer = Mamba2[Float32Array] | NativeMamba2


def memory_of(config: MambaConfig, kernels: _native.Kernels) -> HostMemory:
    """Of random weights with decays between nothing and nearly all."""
    rng = np.random.default_rng(3)
    shapes = mamba_shapes(config, "m.") | {"front.weight": (config.hidden_size,)}
    tensors = {
        name: (rng.standard_normal(shape) / (shape[1] ** 0.5 if len(shape) == 2 else 2)).astype(np.float32)
        for name, shape in shapes.items()
    }
    stored = {name: StoredTensor(t.ravel().view(np.uint8), "f32", t.shape) for name, t in tensors.items()}
    return HostMemory(NativeWeights(kernels, stored), "f32")


def stale(layer: Layer) -> Cache:
    """A cache as another sequence left it, with numbers in what is only written."""
    rng, state = np.random.default_rng(4), layer.new_state(1)
    for array in (state.conv, state.new_conv, state.heads, state.new_heads):
        array[...] = rng.standard_normal(array.shape)
    return Cache([state], 1000)


def hidden(config: MambaConfig, tokens: int) -> Float32Array:
    return np.random.default_rng(tokens).standard_normal((tokens, config.hidden_size)).astype(np.float32)


def given(
    layer: Layer, cache: Cache, x: Float32Array, passes: tuple[int, ...] | None = None
) -> tuple[Float32Array, Float32Array, Float32Array]:
    """What the layer adds to x, in passes of so many tokens, and the state that they leave."""
    out = x.copy()
    ends = np.cumsum(passes or (len(x),)).tolist()
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        layer.add_rows(out[start:end], [Span(slice(0, end - start), cache, None)])
        cache.commit(end - start)
    state: RecurrentState[Float32Array] = cache.states[0]
    return out - x, state.conv, state.heads


def assert_close(ours: tuple[Float32Array, ...], theirs: tuple[Float32Array, ...]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert np.abs(a - b).max() < CLOSE * max(1.0, float(np.abs(b).max()))


@pytest.fixture(params=CONFIGS.values(), ids=[name.replace(" ", "-") for name in CONFIGS])
def config(request: pytest.FixtureRequest) -> Any:
    return request.param


def recurrence(
    q: Float32Array, k: Float32Array, v: Float32Array, decay: Float32Array, state: Float32Array
) -> tuple[Any, Any]:
    """The formula of mamba2.py's first lines, token by token, in float64."""
    share, s, out = v.shape[1] // q.shape[1], state.astype(np.float64), np.zeros(v.shape)
    for t in range(len(q)):
        for h in range(v.shape[1]):
            s[h] = np.exp(decay[t, h]) * s[h] + np.outer(k[t, h // share], v[t, h])
            out[t, h] = s[h].T @ q[t, h // share]
    return out, s


@pytest.mark.parametrize("tokens", [1, 2, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_chunks_give_what_the_recurrence_gives(tokens: int) -> None:
    rng = np.random.default_rng(tokens)
    q, k = (rng.standard_normal((tokens, 2, 16)).astype(np.float32) for _ in range(2))
    v = rng.standard_normal((tokens, 6, 24)).astype(np.float32)
    decay = -np.exp(rng.standard_normal((tokens, 6)) - 2).astype(np.float32)
    state = rng.standard_normal((6, 16, 24)).astype(np.float32)
    left = np.empty_like(state)
    out = Scan(NumpyMath())(q, k, v, decay, state, left)
    expected = recurrence(q, k, v, decay, state)
    for ours, theirs in zip((out, left), expected, strict=True):
        assert np.abs(ours - theirs).max() < CLOSE * np.abs(theirs).max()


@pytest.mark.parametrize("isa", _native.available_isas())
def test_any_number_of_tokens_gives_what_the_twin_gives(config: MambaConfig, isa: str) -> None:
    memory = memory_of(config, _native.Kernels(2, isa))
    ours, twin = NativeMamba2(memory, Mamba2Part(config, SITE)), Mamba2(memory, Mamba2Part(config, SITE))
    for tokens in LENGTHS:
        x = hidden(config, tokens)
        expected = given(twin, stale(twin), x)
        assert np.abs(expected[0]).max() > 0.1, "the comparison means something"
        assert_close(given(ours, stale(ours), x), expected)


def test_a_token_is_the_same_in_passes_of_any_length_and_for_any_number_of_threads() -> None:
    ours = NativeMamba2(memory_of(PLAIN, _native.Kernels(2)), Mamba2Part(PLAIN, SITE))
    x = hidden(PLAIN, 150)
    whole = given(ours, stale(ours), x)
    for passes in ((1,) * 150, (64, 1, 2, 70, 13)):
        assert_close(given(ours, stale(ours), x, passes), whole)
    alone = NativeMamba2(memory_of(PLAIN, _native.Kernels(1)), Mamba2Part(PLAIN, SITE))
    assert [array.tobytes() for array in given(alone, stale(alone), x)] == [array.tobytes() for array in whole]


def test_a_pass_that_is_not_committed_has_changed_nothing() -> None:
    ours = NativeMamba2(memory_of(PLAIN, _native.Kernels(1)), Mamba2Part(PLAIN, SITE))
    cache, undisturbed = stale(ours), stale(ours)
    for tokens in (1, 100):
        ours.add_rows(hidden(PLAIN, tokens), [Span(slice(0, tokens), cache, None)])
    ends = [given(ours, each, hidden(PLAIN, 3)) for each in (cache, undisturbed)]
    assert all(np.array_equal(a, b) for a, b in zip(*ends, strict=True))


def test_what_does_not_fit_together_is_refused() -> None:
    c = PLAIN
    memory = memory_of(c, _native.Kernels(1))
    matrices = [memory.weights.linear(f"m.{name}_proj.weight").native for name in ("in", "out")]

    def made(**changed: Any) -> _native.MambaLayer:
        sizes = {"norm": c.hidden_size, "conv_bias": c.channels, "gate_norm": c.inner}
        sizes |= dict.fromkeys(("decay", "bias", "skip"), c.num_heads)
        options: dict[str, Any] = {name: np.ones(size, np.float32) for name, size in sizes.items()}
        options |= {"taps": np.ones((c.kernel, c.channels), np.float32), "num_groups": c.num_groups}
        options |= {
            "in_bias": None,
            "out_bias": None,
            "norm_eps": 1e-6,
            "residual": 1.0,
            "input": matrices[0],
            "output": matrices[1],
        }
        return _native.MambaLayer(memory.weights.kernels, **options | changed)

    for match, changed in (
        ("share keys", {"num_groups": 3}),
        ("share keys", {"num_groups": 0}),
        ("vectors", {"skip": np.ones(3, np.float32)}),
        ("vectors", {"conv_bias": np.ones(3, np.float32)}),
        ("vectors", {"taps": np.ones((1, c.channels), np.float32)}),
        ("input", {"input": matrices[1]}),
        ("output", {"output": matrices[0]}),
        ("biases", {"in_bias": np.ones(3, np.float32)}),
        ("biases", {"out_bias": np.ones(c.hidden_size + 1, np.float32)}),
    ):
        with pytest.raises(ValueError, match=match):
            made(**changed)
    layer, state = made(), RecurrentState(NumpyMath(), c.conv_shape, c.heads_shape)
    conv, heads = state.conv, state.heads
    for match, arguments in (
        ("no tokens", (hidden(c, 1)[:0], [(conv, heads, conv, heads)], [1])),
        ("another width", (np.zeros((1, 3), np.float32), [(conv, heads, conv, heads)], [1])),
        ("convolution", (hidden(c, 1), [(conv[1:], heads, conv, heads)], [1])),
        ("state", (hidden(c, 1), [(conv, heads, conv, heads[1:])], [1])),
        ("as many sequences", (hidden(c, 1), [(conv, heads, conv, heads)], [])),
        ("no rows, or too many", (hidden(c, 1), [(conv, heads, conv, heads)], [0])),
        ("no rows, or too many", (hidden(c, 1), [(conv, heads, conv, heads)], [2])),
        ("not those of the sequences", (hidden(c, 2), [(conv, heads, conv, heads)], [1])),
    ):
        with pytest.raises(ValueError, match=match):
            layer.run(*arguments)
