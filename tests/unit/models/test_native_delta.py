"""The native gated DeltaNet against models.layers.recurrent.delta_net in numpy, from states left by other calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from moeinf import _native
from moeinf.models.cpu.delta import NativeDeltaNet
from moeinf.models.cpu.weights import HostMemory, NativeWeights
from moeinf.models.layers.attention_config import AttentionSite
from moeinf.models.layers.kv_cache import Cache, Span
from moeinf.models.layers.recurrent.delta_config import DeltaConfig, delta_shapes
from moeinf.models.layers.recurrent.delta_net import DeltaNet, DeltaNetPart
from moeinf.models.layers.recurrent.state import RecurrentState
from moeinf.models.layers.weights import StoredTensor
from moeinf.types import Float32Array

PLAIN = DeltaConfig(
    hidden_size=64, num_key_heads=2, num_value_heads=4, key_dim=16, value_dim=32, kernel=4, norm_eps=1e-5, stacked=True
)
CONFIGS = {
    "whole vectors": replace(PLAIN, key_dim=32, value_dim=128),
    "parts of vectors": replace(PLAIN, hidden_size=40, key_dim=13, value_dim=27),
    "several vectors and a part": replace(PLAIN, key_dim=7, value_dim=150),
    "one value head a key head": replace(PLAIN, num_key_heads=3, num_value_heads=3, value_dim=5),
    "six value heads a key head": replace(PLAIN, num_key_heads=1, num_value_heads=6, key_dim=24, value_dim=24),
    "kernel 2": replace(PLAIN, kernel=2),
    "kernel 3": replace(PLAIN, kernel=3, value_dim=33),
    "kernel 5": replace(PLAIN, kernel=5, value_dim=31),
}
LENGTHS = (1, 2, 63, 64, 65, 200)  # the last of several native passes, and of two slices of the twin's
CLOSE = 2e-5
SITE = AttentionSite(0, "d.", "norm.weight")


def memory_of(config: DeltaConfig, kernels: _native.Kernels) -> HostMemory:
    """Of random weights with decays between nothing and nearly all."""
    rng = np.random.default_rng(3)
    shapes = delta_shapes(config, "d.") | {"norm.weight": (config.hidden_size,)}
    tensors = {
        name: (rng.standard_normal(shape) / (shape[1] ** 0.5 if len(shape) == 2 else 2)).astype(np.float32)
        for name, shape in shapes.items()
    }
    stored = {name: StoredTensor(t.ravel().view(np.uint8), "f32", t.shape) for name, t in tensors.items()}
    return HostMemory(NativeWeights(kernels, stored), "f32")


def stale(layer: DeltaNet[Float32Array] | NativeDeltaNet) -> Cache:
    """A cache as another sequence left it, with numbers in what is only written."""
    rng, state = np.random.default_rng(4), layer.new_state(1)
    for array in (state.conv, state.new_conv, state.heads, state.new_heads):
        array[...] = rng.standard_normal(array.shape)
    return Cache([state], 1000)


def hidden(config: DeltaConfig, tokens: int) -> Float32Array:
    return np.random.default_rng(tokens).standard_normal((tokens, config.hidden_size)).astype(np.float32)


def given(
    layer: DeltaNet[Float32Array] | NativeDeltaNet, cache: Cache, x: Float32Array, passes: tuple[int, ...] | None = None
) -> tuple[Float32Array, RecurrentState[Float32Array]]:
    """What the layer adds to x, in passes of so many tokens, and the state that they leave."""
    out = x.copy()
    ends = np.cumsum(passes or (len(x),)).tolist()
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        layer.add_rows(out[start:end], [Span(slice(0, end - start), cache, None)])
        cache.commit(end - start)
    state: RecurrentState[Float32Array] = cache.states[0]
    return out - x, state


def assert_close(
    ours: tuple[Float32Array, RecurrentState[Float32Array]], theirs: tuple[Float32Array, RecurrentState[Float32Array]]
) -> None:
    for a, b in zip((ours[0], ours[1].conv, ours[1].heads), (theirs[0], theirs[1].conv, theirs[1].heads), strict=True):
        assert np.abs(a - b).max() < CLOSE * max(1.0, float(np.abs(b).max()))


@pytest.fixture(params=CONFIGS.values(), ids=[name.replace(" ", "-") for name in CONFIGS])
def config(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("stacked", [True, False], ids=["stacked", "apart"])
@pytest.mark.parametrize("isa", _native.available_isas())
def test_any_number_of_tokens_gives_what_the_twin_gives(config: DeltaConfig, isa: str, stacked: bool) -> None:
    config = replace(config, stacked=stacked)
    memory = memory_of(config, _native.Kernels(2, isa))
    ours, twin = (NativeDeltaNet(memory, DeltaNetPart(config, SITE)), DeltaNet(memory, DeltaNetPart(config, SITE)))
    for tokens in LENGTHS:
        x = hidden(config, tokens)
        expected = given(twin, stale(twin), x)
        assert np.abs(expected[0]).max() > 0.1, "the comparison means something"
        assert_close(given(ours, stale(ours), x), expected)


def test_a_token_is_the_same_in_passes_of_any_length(config: DeltaConfig) -> None:
    ours = NativeDeltaNet(memory_of(config, _native.Kernels(2)), DeltaNetPart(config, SITE))
    x = hidden(config, 150)
    whole = given(ours, stale(ours), x)
    for passes in ((1,) * 150, (64, 1, 2, 70, 13), (3, 147)):
        assert_close(given(ours, stale(ours), x, passes), whole)


def test_results_are_the_same_for_every_number_of_threads(config: DeltaConfig) -> None:
    def outcome(threads: int, tokens: int) -> list[bytes]:
        layer = NativeDeltaNet(memory_of(config, _native.Kernels(threads)), DeltaNetPart(config, SITE))
        added, state = given(layer, stale(layer), hidden(config, tokens))
        return [array.tobytes() for array in (added, state.conv, state.heads)]

    for tokens in (1, 70):
        assert outcome(1, tokens) == outcome(2, tokens) == outcome(5, tokens)


def test_a_pass_that_is_not_committed_has_changed_nothing(config: DeltaConfig) -> None:
    ours = NativeDeltaNet(memory_of(config, _native.Kernels(1)), DeltaNetPart(config, SITE))
    cache, undisturbed = stale(ours), stale(ours)
    for tokens in (1, 100):
        ours.add_rows(hidden(config, tokens), [Span(slice(0, tokens), cache, None)])
    ends = [given(ours, each, hidden(config, 3)) for each in (cache, undisturbed)]
    assert np.array_equal(ends[0][0], ends[1][0]) and np.array_equal(ends[0][1].heads, ends[1][1].heads)


def test_what_does_not_fit_together_is_refused() -> None:
    c = PLAIN
    memory = memory_of(c, _native.Kernels(1))
    matrices = {name: memory.weights.linear(name).native for name in (*c.projections("d."), "d.out_proj.weight")}

    def vector(count: int) -> Float32Array:
        return np.ones(count, np.float32)

    def made(**changed: Any) -> _native.DeltaLayer:
        options: dict[str, Any] = {
            "projections": [matrices[name] for name in c.projections("d.")],
            "output": matrices["d.out_proj.weight"],
            "norm": vector(c.hidden_size),
            "taps": np.ones((c.kernel, c.channels), np.float32),
            "decay": vector(c.num_value_heads),
            "bias": vector(c.num_value_heads),
            "q_norm": vector(c.key_dim),
            "k_norm": vector(c.key_dim),
            "head_norm": vector(c.value_dim),
            "num_key_heads": c.num_key_heads,
            "norm_eps": 1e-6,
            "unit_eps": 1e-6,
        }
        return _native.DeltaLayer(memory.weights.kernels, **options | changed)

    for match, changed in (
        ("share keys", {"num_key_heads": 3}),
        ("share keys", {"num_key_heads": 0}),
        ("vectors", {"k_norm": vector(3)}),
        ("vectors", {"bias": vector(5)}),
        ("vectors", {"taps": np.ones((1, c.channels), np.float32)}),
        ("vectors", {"taps": np.ones((4, 7), np.float32)}),
        ("2 projections or 4", {"projections": [matrices["d.in_proj_ba.weight"]]}),
        ("a projection", {"projections": [matrices["d.in_proj_ba.weight"]] * 2}),
        ("output", {"output": matrices["d.in_proj_ba.weight"]}),
    ):
        with pytest.raises(ValueError, match=match):
            made(**changed)
    layer = made()
    conv, heads = (
        np.zeros(shape, np.float32)
        for shape in ((c.kernel - 1, c.channels), (c.num_value_heads, c.key_dim, c.value_dim))
    )
    layer.run(hidden(c, 1), [(conv, heads, conv.copy(), heads.copy())], [1])
    for match, arguments in (
        ("no tokens", (hidden(c, 1)[:0], [(conv, heads, conv, heads)], [1])),
        ("another width", (np.zeros((1, 3), np.float32), [(conv, heads, conv, heads)], [1])),
        ("convolution", (hidden(c, 1), [(conv[1:], heads, conv, heads)], [1])),
        ("convolution", (hidden(c, 1), [(conv, heads, conv[1:], heads)], [1])),
        ("state", (hidden(c, 1), [(conv, heads[1:], conv, heads)], [1])),
        ("state", (hidden(c, 1), [(conv, heads, conv, heads[1:])], [1])),
        ("as many sequences", (hidden(c, 1), [(conv, heads, conv, heads)], [])),
        ("no rows, or too many", (hidden(c, 1), [(conv, heads, conv, heads)], [0])),
        ("no rows, or too many", (hidden(c, 1), [(conv, heads, conv, heads)], [2])),
        ("not those of the sequences", (hidden(c, 2), [(conv, heads, conv, heads)], [1])),
    ):
        with pytest.raises(ValueError, match=match):
            layer.run(*arguments)
