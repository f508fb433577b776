"""Every option of AttentionConfig on the CPU, against plain torch in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from moeinf import _native
from moeinf.models.cpu.attention import NativeAttention
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.cpu.weights import HostMemory, NativeWeights
from moeinf.models.layers.attention.grouped import AttentionPart, attention_shapes, attention_workspace
from moeinf.models.layers.attention_config import (
    AttentionConfig,
    AttentionSite,
    Gate,
    HeadNorms,
    Projections,
    Scores,
    Shapes,
    Sharpening,
    Sight,
)
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.rope import Rope, plain_rope
from moeinf.models.layers.soft_tokens import SoftTokens
from moeinf.models.layers.weights import StoredTensor
from moeinf.types import AttentionSizes, Float32Array, KVFormat, PassShape

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, RESIDUAL = 32, 6, 2, 12, 0.22
ROPE = plain_rope(HEAD_DIM, 100.0)
SHORT_ROPE = Rope(ROPE.frequencies[:2])
PLAIN = AttentionConfig(HIDDEN, HEADS, KV_HEADS, HEAD_DIM, 1e-5, ROPE)
CONFIGS = {
    "plain": PLAIN,
    "no positions": replace(PLAIN, rope=None),
    "partial, scaled cos and sin": replace(PLAIN, rope=Rope(ROPE.frequencies[:3], 1.3), head_norms=HeadNorms()),
    "partial, interleaved": replace(
        PLAIN, rope=Rope(ROPE.frequencies[:4], interleaved=True), head_norms=HeadNorms("full")
    ),
    "a scale": replace(PLAIN, scores=Scores(0.05)),
    "biases": replace(PLAIN, projections=Projections(bias=True)),
    "a bias of the output": replace(PLAIN, projections=Projections(output_bias=True)),
    "sinks": replace(
        PLAIN, scores=Scores(sinks="sinks", scale=0.1), projections=Projections(bias=True, output_bias=True)
    ),
    "capped scores": replace(PLAIN, scores=Scores(cap=0.4)),
    "capped scores, a window": replace(PLAIN, scores=Scores(0.3, cap=1.5), sight=Sight(5)),
    "sinks, a window": replace(PLAIN, scores=Scores(sinks="sinks"), sight=Sight(5)),
    "gates, norms of one less": replace(PLAIN, gate=Gate(), head_norms=HeadNorms(), norm="rms+1", rope=SHORT_ROPE),
    "gates, biases": replace(PLAIN, gate=Gate(), projections=Projections(bias=True)),
    "gates of a matrix of their own": replace(PLAIN, gate=Gate("gate_proj"), head_norms=HeadNorms()),
    "norms behind positions": replace(PLAIN, head_norms=HeadNorms("turned")),
    "norms behind some positions": replace(PLAIN, head_norms=HeadNorms("turned"), rope=SHORT_ROPE),
    "norms without weights": replace(PLAIN, head_norms=HeadNorms("turned", names=None, of_values=True)),
    "values that are keys": replace(
        PLAIN, head_norms=HeadNorms(of_values=True), projections=Projections(values_of_keys=True, bias=True)
    ),
    "chunks": replace(PLAIN, sight=Sight(7, chunked=True)),
    "sharpened queries": replace(PLAIN, rope=None, scores=Scores(sharpening=Sharpening(0.4, 5, 1))),
    "queries sharpened by a power": replace(PLAIN, scores=Scores(sharpening=Sharpening(0.4, 5, 1, growth="power"))),
    "biased gates": replace(PLAIN, gate=Gate("gate_proj", bias="gate_bias")),
    "biased gates of heads": replace(PLAIN, gate=Gate("gate_proj", per_head=True, bias="gate_bias")),
    "layer norm": replace(PLAIN, norm="layer", projections=Projections(bias=True, output_bias=True)),
}

SITE = AttentionSite(0, "a.", "norm.weight", RESIDUAL)
CASES = {name: (config, SITE) for name, config in CONFIGS.items()} | {
    "a norm behind": (
        replace(PLAIN, projections=Projections(output_bias=True)),
        replace(SITE, norm=None, output_norm="behind.weight"),
    ),
    "norms on both sides": (replace(PLAIN, gate=Gate("gate_proj")), replace(SITE, output_norm="behind.weight")),
    "another epsilon in front": (PLAIN, replace(SITE, front_eps=0.3)),
}


class Twin:
    """norm(attention(norm(x))) of a whole sequence at once."""

    def __init__(self, config: AttentionConfig, site: AttentionSite, tensors: dict[str, Float32Array]) -> None:
        self._config, self._site = config, site
        self._over = None if config.head_norms is None else config.head_norms.over
        self._tensors = {name: torch.from_numpy(values).double() for name, values in tensors.items()}

    def __call__(self, x: Tensor, ends: Tensor | None = None) -> Tensor:
        c, p, hidden = self._config, self._config.projections, self._normed(x)
        queries, keys, values = (self._product(n, hidden, p.bias) for n in ("qkk" if p.values_of_keys else "qkv"))
        if c.gate is not None and c.gate.name is None:
            queries, gates = (part.flatten(1) for part in queries.view(len(x), HEADS, -1).chunk(2, -1))
        q, k = (self._heads_behind(n, self._turned(self._heads(n, x))) for n, x in (("q", queries), ("k", keys)))
        if (s := c.scores.sharpening) is not None:
            numbers = torch.arange(len(x)).double() + s.offset
            steps = 1 + s.sharpness * (numbers // s.length).log1p()
            q = q * ((1 + numbers / s.length) ** s.sharpness if s.growth == "power" else steps)[:, None, None]
        v = values.view(len(x), KV_HEADS, HEAD_DIM)
        v = self._rms(v, torch.ones(HEAD_DIM)) if c.head_norms is not None and c.head_norms.of_values else v
        k, v = (part.repeat_interleave(HEADS // KV_HEADS, 1) for part in (k, v))
        scores = torch.einsum("ihd,jhd->hij", q, k) * c.scale
        if c.scores.cap is not None:
            scores = c.scores.cap * (scores / c.scores.cap).tanh()
        distance = torch.arange(len(x))[:, None] - torch.arange(len(x))
        unseen = distance >= (c.window or len(x))
        if c.sight.chunked:
            chunk = torch.arange(len(x)) // c.window
            unseen = chunk[:, None] != chunk
        behind = distance < 0 if ends is None else torch.arange(len(x)) >= ends[:, None]
        scores = scores.masked_fill(behind | unseen, -torch.inf)
        if c.scores.sinks:
            scores = torch.cat([self._tensors["a.sinks"][:, None, None].expand(-1, len(x), 1), scores], -1)
        weights = scores.softmax(-1)[:, :, 1:] if c.scores.sinks else scores.softmax(-1)
        mixed = torch.einsum("hij,jhd->ihd", weights, v).flatten(1)
        if c.gate is not None and c.gate.name is not None:
            gates = (hidden @ self._tensors["a.gate_proj.weight"].T).view(len(x), HEADS, -1)
            gates = gates + self._tensors.get("a.gate_bias", torch.zeros(HEADS))[:, None]
            gates = gates.expand(-1, -1, HEAD_DIM).flatten(1)
        out = self._product("o", mixed if c.gate is None else mixed * gates.sigmoid(), p.output_bias)
        return out if self._site.output_norm is None else self._rms(out, self._tensors[self._site.output_norm])

    def _product(self, name: str, x: Tensor, biased: bool) -> Tensor:
        y = x @ self._tensors[f"a.{name}_proj.weight"].T
        return y + self._tensors[f"a.{name}_proj.bias"] if biased else y

    def _normed(self, x: Tensor) -> Tensor:
        if self._site.norm is None:
            return x
        if self._config.norm != "layer":
            return self._rms(x, self._tensors["norm.weight"], self._site.front_eps)
        return torch.nn.functional.layer_norm(
            x, (HIDDEN,), self._tensors["norm.weight"], self._tensors["norm.bias"], self._config.norm_eps
        )

    def _rms(self, x: Tensor, weight: Tensor, eps: float | None = None) -> Tensor:
        return (
            x
            / (x.square().mean(-1, keepdim=True) + (self._config.norm_eps if eps is None else eps)).sqrt()
            * (weight + (self._config.norm == "rms+1"))
        )

    def _heads(self, name: str, x: Tensor) -> Tensor:
        weight = self._tensors.get(f"a.{name}_norm.weight")
        if weight is not None and self._over == "full":
            x = self._rms(x, weight)
        x = x.view(len(x), -1, HEAD_DIM)
        return self._rms(x, weight) if weight is not None and self._over == "head" else x

    def _heads_behind(self, name: str, x: Tensor) -> Tensor:
        if self._over != "turned":
            return x
        return self._rms(x, self._tensors.get(f"a.{name}_norm.weight", torch.ones(HEAD_DIM)))

    def _turned(self, x: Tensor) -> Tensor:
        rope = self._config.rope
        if rope is None:
            return x
        cos, sin = (torch.from_numpy(table).double()[:, None] for table in rope.tables(0, len(x)))
        turned, rest = x[..., : rope.rotary_dim], x[..., rope.rotary_dim :]
        a, b = (turned[..., ::2], turned[..., 1::2]) if rope.interleaved else turned.chunk(2, -1)
        pairs = a * cos - b * sin, b * cos + a * sin
        return torch.cat([torch.stack(pairs, -1).flatten(-2) if rope.interleaved else torch.cat(pairs, -1), rest], -1)


def drawn(shapes: Shapes, rng: np.random.Generator) -> dict[str, Float32Array]:
    return {
        name: (rng.standard_normal(shape) / (4 if len(shape) == 2 else 1)).astype(np.float32)
        for name, shape in shapes.items()
    }


@pytest.mark.parametrize("isa", _native.available_isas())
@pytest.mark.parametrize("config, site", CASES.values(), ids=[name.replace(" ", "-") for name in CASES])
def test_every_option_gives_what_plain_torch_gives_however_a_sequence_is_cut(
    config: AttentionConfig, site: AttentionSite, isa: str
) -> None:
    rng = np.random.default_rng(3)
    norms = {name: (HIDDEN,) for name in ("norm.weight", "norm.bias", "behind.weight")}
    tensors = drawn(attention_shapes(config, "a.") | norms, rng)
    stored = {name: StoredTensor(t.ravel().view(np.uint8), "f32", t.shape) for name, t in tensors.items()}
    layers = NativeLayers(_native.Kernels(2, isa), stored, "f32")
    attention = NativeAttention(layers.memory, AttentionPart(config, site))
    rotary = layers.rotary(config.rope, 64)
    passes = (3, 1, 20, 1, 30, 5)
    x = rng.standard_normal((sum(passes), HIDDEN)).astype(np.float32)
    wide = torch.from_numpy(x).double()
    expected = (wide + RESIDUAL * Twin(config, site, tensors)(wide)).numpy()
    cache = Cache([attention.new_state(64)], 64)
    for count in passes:
        place = slice(cache.length, cache.length + count)
        attention.add_to(x[place], cache, rotary(cache.length, count, cache))
        cache.advance(count)
    assert np.abs(x - expected).max() < 1e-5


@pytest.mark.parametrize("isa", _native.available_isas())
@pytest.mark.parametrize("window", [None, 9, 150])
@pytest.mark.parametrize("option", ["plain", "gates, biases", "gates of a matrix of their own", "layer norm"])
def test_tokens_of_a_picture_see_each_other(option: str, window: int | None, isa: str) -> None:
    config = replace(CONFIGS[option], sight=Sight(window, sees="picture"))
    rng = np.random.default_rng(5)
    tensors = drawn(attention_shapes(config, "a.") | {"norm.weight": (HIDDEN,), "norm.bias": (HIDDEN,)}, rng)
    stored = {name: StoredTensor(t.ravel().view(np.uint8), "f32", t.shape) for name, t in tensors.items()}
    layers = NativeLayers(_native.Kernels(2, isa), stored, "f32")
    tokens, pictures = 620, [SoftTokens(4, (2, 6), none_of_them), SoftTokens(100, (10, 50), none_of_them)]
    x = rng.standard_normal((tokens, HIDDEN)).astype(np.float32)
    ends = torch.arange(1, tokens + 1)
    ends[4:16], ends[100:600] = 16, 600
    wide = torch.from_numpy(x).double()
    expected = (wide + RESIDUAL * Twin(config, SITE, tensors)(wide, ends)).numpy()

    def in_passes(*borders: int) -> Float32Array:
        found: Float32Array = x.copy()
        attention, rotary = (
            NativeAttention(layers.memory, AttentionPart(config, SITE)),
            layers.rotary(config.rope, tokens),
        )
        cache = Cache([attention.new_state(tokens)], tokens)
        cache.pictures = pictures
        layers.begin_pass(tokens)
        for end in borders:
            place = slice(cache.length, end)
            attention.add_to(found[place], cache, rotary(cache.length, end - cache.length, cache))
            cache.advance(end - place.start)
        return found

    whole = in_passes(tokens)
    assert np.abs(whole - expected).max() < 2e-5
    assert np.array_equal(whole, in_passes(3, 18, 99, 600, tokens)) and np.array_equal(
        whole, in_passes(100, 601, tokens)
    )
    config = replace(config, sight=Sight(sees="all"))
    every = NativeAttention(layers.memory, AttentionPart(config, SITE))
    cache = Cache([every.new_state(tokens)], tokens)
    every.add_to(x, cache, layers.rotary(config.rope, tokens)(0, tokens, cache))
    assert (
        np.abs(x - (wide + RESIDUAL * Twin(config, SITE, tensors)(wide, torch.full((tokens,), tokens))).numpy()).max()
        < 2e-5
    )


def none_of_them() -> Float32Array:
    raise AssertionError("attention asks for no rows")


def test_biases_of_a_fused_matrix_are_its_parts() -> None:
    fused = replace(PLAIN, projections=Projections(bias=True, fused="qkv"))
    tensors = drawn(attention_shapes(fused, "a.") | {"norm.weight": (HIDDEN,)}, np.random.default_rng(4))
    cuts = [HEADS * HEAD_DIM, (HEADS + KV_HEADS) * HEAD_DIM]
    parts = {
        f"a.{n}_proj.{kind}": part
        for kind in ("weight", "bias")
        for n, part in zip("qkv", np.split(tensors[f"a.qkv.{kind}"], cuts), strict=True)
    }
    found = []
    for config, given in ((fused, tensors), (replace(PLAIN, projections=Projections(bias=True)), tensors | parts)):
        stored = {name: StoredTensor(t.ravel().view(np.uint8), "f32", t.shape) for name, t in given.items()}
        layers = NativeLayers(_native.Kernels(1), stored, "f32")
        attention, x = NativeAttention(layers.memory, AttentionPart(config, SITE)), np.ones((9, HIDDEN), np.float32)
        cache = Cache([attention.new_state(9)], 9)
        attention.add_to(x, cache, layers.rotary(config.rope, 9)(0, 9, cache))
        found.append(x)
    assert np.array_equal(found[0], found[1])


@pytest.mark.parametrize("ends", [[1, 2], [1, 2, 4], [1, 1, 3]], ids=["too few", "beyond all", "before itself"])
def test_ends_that_cannot_be_are_refused(ends: list[int]) -> None:
    tensors = drawn(attention_shapes(PLAIN, "a.") | {"norm.weight": (HIDDEN,)}, np.random.default_rng(4))
    stored = {name: StoredTensor(t.ravel().view(np.uint8), "f32", t.shape) for name, t in tensors.items()}
    memory = HostMemory(NativeWeights(_native.Kernels(1), stored), "f32")
    attention = NativeAttention(memory, AttentionPart(PLAIN, SITE))
    state, tables = attention.new_state(3), ROPE.tables(0, 3)
    with pytest.raises(ValueError, match="ends"):
        attention._native.run(
            np.ones((3, HIDDEN), np.float32), state.keys, state.values, "f32", 3, 0, *tables, np.array(ends, np.int64)
        )


LONG = replace(PLAIN, rope=None, scores=Scores(sinks="sinks"))


def attended(layer: _native.AttentionLayer, x: Float32Array, kept: list[Float32Array], length: int) -> Float32Array:
    """What the layer makes of x behind `length` others, of which `kept` has keys and values."""
    out: Float32Array = x.copy()
    keys, values = (part.copy().view(np.uint8).reshape(-1) for part in kept)
    none = np.empty((0, 0), np.float32)
    layer.run(out, keys, values, "f32", kept[0].shape[1], length, none, none)
    return out


@pytest.mark.parametrize("isa", _native.available_isas())
@pytest.mark.parametrize("length", [3, 511, 512, 1500, 8191, 8192, 20_000])
def test_a_token_far_behind_is_the_same_on_any_number_of_threads_and_what_plain_numpy_gives(
    length: int, isa: str
) -> None:
    rng = np.random.default_rng(length)
    tensors = drawn(attention_shapes(LONG, "a.") | {"norm.weight": (HIDDEN,)}, rng)
    x = rng.standard_normal((3, HIDDEN)).astype(np.float32)
    kept = [rng.standard_normal((KV_HEADS, length + 3, HEAD_DIM)).astype(np.float32) for _ in "kv"]

    def layer(threads: int) -> _native.AttentionLayer:
        def matrix(name: str) -> _native.Matrix:
            weight = tensors[f"a.{name}_proj.weight"]
            return _native.Matrix(weight.view(np.uint8).reshape(-1), "f32", *weight.shape)

        taken = _native.AttentionTensors(
            query=matrix("q"),
            key=matrix("k"),
            value=matrix("v"),
            output=matrix("o"),
            norm=tensors["norm.weight"],
            sinks=tensors["a.sinks"],
        )
        shape = _native.AttentionShape(head_dim=HEAD_DIM, norm_eps=1e-5, rotary_dim=0)
        return _native.AttentionLayer(_native.Kernels(threads, isa), taken, shape)

    alone = attended(layer(1), x, kept, length)
    for threads in (2, 4, 16):
        assert np.array_equal(alone, attended(layer(threads), x, kept, length))
    twin = Twin(LONG, SITE, tensors)
    hidden = twin._normed(torch.from_numpy(x).double())
    q, k, v = (twin._heads("none", twin._product(name, hidden, False)) for name in "qkv")
    keys, values = (
        torch.cat([torch.from_numpy(part[:, :length]).double(), new.transpose(0, 1)], 1)
        for part, new in zip(kept, (k, v), strict=True)
    )
    for i in range(3):
        heads = []
        for h in range(HEADS):
            scores = keys[h // (HEADS // KV_HEADS), : length + i + 1] @ q[i, h] * HEAD_DIM**-0.5
            weights = torch.cat([scores, twin._tensors["a.sinks"][h : h + 1]]).softmax(0)[:-1]
            heads.append(weights @ values[h // (HEADS // KV_HEADS), : length + i + 1])
        expected = torch.from_numpy(x[i]).double() + twin._product("o", torch.cat(heads), False)
        assert np.abs(alone[i] - expected.numpy()).max() < 1e-5


@pytest.mark.parametrize("isa", _native.available_isas())
@pytest.mark.parametrize("kept", ["bf16", "q8_0"])
@pytest.mark.parametrize(
    ("window", "chunked"),
    [(None, False), (70, False), (1000, False), (70, True), (1000, True)],
    ids=["all", "short window", "long window", "short chunks", "long chunks"],
)
def test_how_a_prompt_is_cut_does_not_change_a_bit(window: int | None, chunked: bool, kept: KVFormat, isa: str) -> None:
    config, tokens = replace(PLAIN, sight=Sight(window, chunked=chunked), head_dim=32), 2300
    rng = np.random.default_rng(9)
    tensors = drawn(attention_shapes(config, "a.") | {"norm.weight": (HIDDEN,)}, rng)
    stored = {name: StoredTensor(t.ravel().view(np.uint8), "f32", t.shape) for name, t in tensors.items()}
    layers = NativeLayers(_native.Kernels(2, isa), stored, kept)
    attention = NativeAttention(layers.memory, AttentionPart(config, AttentionSite(0, "a.", "norm.weight")))
    rotary = layers.rotary(config.rope, tokens)
    given = rng.standard_normal((tokens, HIDDEN)).astype(np.float32)

    def in_chunks(*sizes: int) -> Float32Array:
        x: Float32Array = given.copy()
        cache = Cache([attention.new_state(tokens)], tokens)
        layers.begin_pass(tokens)
        while cache.length < tokens:
            for size in sizes:
                place = slice(cache.length, min(tokens, cache.length + size))
                if place.start < tokens:
                    attention.add_to(x[place], cache, rotary(cache.length, place.stop - place.start, cache))
                    cache.advance(place.stop - place.start)
        return x

    whole = in_chunks(tokens)
    assert np.array_equal(whole, in_chunks(511, 1, 9, 64))
    assert np.array_equal(whole, in_chunks(1023, 5))


def test_shapes_and_options_that_do_not_fit_are_refused() -> None:
    kernels = _native.Kernels(1)
    square = _native.Matrix(np.zeros(16 * 16 * 4, np.uint8), "f32", 16, 16)
    norm = np.ones(16, np.float32)

    def refused(match: str, *, tensors: dict[str, Any] | None = None, **options: Any) -> None:
        with pytest.raises(ValueError, match=match):
            given: dict[str, Any] = {"query": square, "key": square, "value": square, "output": square, "norm": norm}
            taken = _native.AttentionTensors(**given | (tensors or {}))
            shape = _native.AttentionShape(**{"head_dim": 8, "norm_eps": 1e-6} | options)
            _native.AttentionLayer(kernels, taken, shape)

    for rotary_dim in (3, 10, -2):
        refused("rotary_dim", rotary_dim=rotary_dim)
    refused("scale", scale=0.0)
    refused("share keys", gated=True)
    refused("wrong length", tensors={"sinks": np.zeros(3, np.float32)})
    refused("wrong length", tensors={"norm_bias": np.zeros(3, np.float32)})
    refused("head norms are missing", head_norm="head")
    refused("head norms are missing", head_norm="head", tensors={"query_norm": np.ones(8, np.float32)})


@pytest.mark.parametrize("kept", ["f32", "q8_0"])
@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("tokens", [1, 8, 9, 200])
def test_a_layer_takes_no_more_of_the_workspace_than_it_says(tokens: int, window: int, kept: KVFormat) -> None:
    kernels, length = _native.Kernels(2), 3000
    config = replace(LONG, sight=Sight(window or None), head_dim=32)
    tensors = drawn(attention_shapes(config, "a.") | {"norm.weight": (HIDDEN,)}, np.random.default_rng(0))
    stored = {name: StoredTensor(t.ravel().view(np.uint8), "f32", t.shape) for name, t in tensors.items()}
    layers = NativeLayers(kernels, stored, kept)
    attention = NativeAttention(layers.memory, AttentionPart(config, AttentionSite(0, "a.", "norm.weight")))
    cache = Cache([attention.new_state(length + tokens)], length + tokens)
    for _ in range(2):  # the second joins what the first has taken piece by piece
        cache.length = length
        layers.begin_pass(tokens)
        attention.add_to(np.ones((tokens, HIDDEN), np.float32), cache, layers.rotary(None, 1)(0, tokens, cache))
    (sizes,) = attention_workspace(config).layers
    assert isinstance(sizes, AttentionSizes)
    shape = PassShape("f32", kept, tokens, length + tokens, 2)
    said = _native.AttentionLayer.workspace_bytes(sizes, shape)
    assert said // 4 < kernels.scratch_bytes <= said + _native.Kernels.panel_bytes(shape)
