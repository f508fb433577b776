"""The native core of latent attention against its twin, and against itself on other numbers of threads."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from moeinf import _native
from moeinf.models.layers.rope import plain_rope
from moeinf.types import ByteArray, Float32Array, IntArray, KVFormat, format_bytes
from tests.oracles.latent import latent_attention

Kind = Literal["f32", "f16", "bf16"]
TOLERANCE: dict[Kind, float] = {"f32": 2e-6, "f16": 2e-3, "bf16": 2e-2}  # of the largest result


def stored(values: Float32Array, kind: Kind) -> ByteArray:
    if kind == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).reshape(-1).view(np.uint8)
    return values.astype(np.float32 if kind == "f32" else np.float16).reshape(-1).view(np.uint8)


def widened(data: ByteArray, kind: Kind) -> Float32Array:
    if kind == "bf16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return data.view(np.float32 if kind == "f32" else np.float16).astype(np.float32)


def latent_layer(
    kernels: _native.Kernels,
    keys_values: _native.Matrix,
    sizes: tuple[int, int, int, int],
    interleaved: bool = False,
    scale: float = 1.0,
    sinks: Float32Array | None = None,
    window: int = 0,
) -> _native.LatentLayer:
    heads, plain, value, rotary = sizes
    return _native.LatentLayer(
        kernels,
        keys_values,
        num_heads=heads,
        qk_nope_head_dim=plain,
        value_dim=value,
        rotary_dim=rotary,
        interleaved=interleaved,
        scale=scale,
        sinks=sinks,
        window=window,
    )


class Case:
    """Random weights, rows and queries of one layer."""

    def __init__(
        self,
        heads: int,
        rank: int,
        plain: int,
        value: int,
        rotary: int,
        tokens: int,
        kind: Kind = "f32",
        interleaved: bool = False,
    ) -> None:
        rng = np.random.default_rng(heads * tokens + rank)
        self.sizes, self.kind, self.tokens, self.interleaved = (heads, plain, value, rotary), kind, tokens, interleaved
        self.width, self.scale = rank + rotary, (plain + rotary) ** -0.5
        weights = rng.standard_normal((heads * (plain + value), rank), np.float32) * np.float32(rank**-0.5)
        self.data = stored(weights, kind)
        self.keys_values = widened(self.data, kind).reshape(heads, plain + value, rank)
        self.rows = rng.standard_normal((tokens, self.width), np.float32)
        self.queries = 3 * rng.standard_normal((tokens, heads, plain + rotary), np.float32)
        self.angles = plain_rope(rotary, 1e4, interleaved).tables(0, tokens)
        self.sinks: Float32Array | None = None
        self.window = 0

    def attended(
        self, kernels: _native.Kernels, passes: list[int], last: int, kept: KVFormat | None = None
    ) -> Float32Array:
        """What the last tokens give [last, heads * value], the tokens taken in passes of such sizes."""
        heads, plain, value, rotary = self.sizes
        matrix = _native.Matrix(self.data, self.kind, heads * (plain + value), self.width - rotary)
        layer = latent_layer(kernels, matrix, self.sizes, self.interleaved, self.scale, self.sinks, self.window)
        kept = kept or self.kind
        cache = np.full(format_bytes(kept, (self.tokens, self.width)), 0xFF, np.uint8)  # NaN where not written
        outs, length = [], 0
        for count in passes:
            taken = slice(length, length + count)
            cos, sin = (table[taken] for table in self.angles)
            layer.store(self.rows[taken], cache, kept, length, cos, sin)
            out = np.full((count, heads * value), np.nan, np.float32)
            layer.attend(self.queries[taken].reshape(count, -1), cache, kept, length, cos, sin, out)
            outs.append(out)
            length += count
        assert length == self.tokens
        return np.concatenate(outs)[-last:]

    def expected(self, last: int) -> np.ndarray:
        twin = latent_attention(
            self.queries[-last:],
            self.rows,
            self.keys_values,
            self.angles,
            self.scale,
            self.interleaved,
            self.sinks,
            self.window,
        )
        return twin.reshape(last, -1)


@pytest.fixture(scope="module", params=_native.available_isas())
def kernels(request: pytest.FixtureRequest) -> _native.Kernels:
    return _native.Kernels(2, request.param)


def assert_near(found: Float32Array, expected: np.ndarray, kind: Kind) -> None:
    assert np.abs(found - expected).max() <= TOLERANCE[kind] * np.abs(expected).max()


@pytest.mark.parametrize("kind", TOLERANCE)
@pytest.mark.parametrize("heads, rank, plain, value, rotary, interleaved", [
    (1, 1, 1, 1, 2, False), (3, 37, 5, 9, 6, True), (5, 70, 33, 20, 10, False), (33, 16, 3, 2, 4, True),
    (40, 130, 16, 7, 64, False), (3, 20, 5, 9, 0, True),
])  # fmt: skip
def test_attention_of_odd_sizes_equals_its_twin(
    kernels: _native.Kernels, kind: Kind, heads: int, rank: int, plain: int, value: int, rotary: int, interleaved: bool
) -> None:
    case = Case(heads, rank, plain, value, rotary, 45, kind, interleaved)
    expected = case.expected(45)
    for passes in ([45], [1] * 45, [30, 1, 5, 9]):
        assert_near(case.attended(kernels, passes, 45), expected, kind)


@pytest.mark.parametrize("kind", TOLERANCE)
@pytest.mark.parametrize("window", [1, 9, 200])
def test_a_window_hides_what_lies_before_it_however_a_sequence_is_cut(
    kernels: _native.Kernels, window: int, kind: Kind
) -> None:
    case = Case(6, 64, 8, 12, 32, 700, kind)  # several runs, of which the last tokens see one or two
    case.window = window
    kernels.begin_pass(700)
    whole = case.attended(kernels, [700], 700)
    assert_near(whole, case.expected(700), kind)
    assert np.array_equal(case.attended(kernels, [300, 1, 1, 133, 265], 700), whole)
    kernels.begin_pass(0)


@pytest.mark.parametrize("length", [1, 2, 127, 128, 129, 511, 512, 513, 2000])
def test_one_token_and_a_few_see_all_that_came_before(kernels: _native.Kernels, length: int) -> None:
    case = Case(6, 64, 8, 12, 8, length)
    passes = [length - 1, 1] if length > 1 else [1]
    assert_near(case.attended(kernels, passes, 1), case.expected(1), "f32")
    if length > 5:
        assert_near(case.attended(kernels, [length - 5, 5], 5), case.expected(5), "f32")


@pytest.mark.parametrize("kind", TOLERANCE)
def test_published_widths_and_many_heads_equal_the_twin(kind: Kind) -> None:
    case = Case(24, 512, 128, 128, 64, 140, kind, True)  # several blocks of places, several groups of heads
    assert_near(case.attended(_native.Kernels(2), [136, 3, 1], 140), case.expected(140), kind)


@pytest.mark.parametrize("kind", TOLERANCE)
def test_the_number_of_threads_does_not_change_a_bit(kind: Kind) -> None:
    case = Case(20, 100, 12, 8, 16, 700, kind)
    passes = [400, 290, 1, 2, 7]
    alone = case.attended(_native.Kernels(1), passes, 700)
    for threads in (2, 3):
        assert np.array_equal(alone, case.attended(_native.Kernels(threads), passes, 700))


def test_a_quantised_cache_gives_nearly_the_same_however_a_sequence_is_cut(kernels: _native.Kernels) -> None:
    case = Case(9, 64, 12, 8, 32, 700, "f32")
    expected = case.expected(700)
    kernels.begin_pass(700)
    found = case.attended(kernels, [700], 700, "q8_0")
    error = np.abs(found - expected)
    assert error.max() <= 6e-2 * np.abs(expected).max() and error.mean() <= 6e-3 * np.abs(expected).max()
    assert np.array_equal(found, case.attended(kernels, [511, 1, 8, 180], 700, "q8_0"))
    kernels.begin_pass(0)


def test_a_quantised_cache_of_other_sizes_is_refused() -> None:
    case = Case(3, 64, 12, 8, 8, 4)
    matrix = _native.Matrix(case.data, "f32", 3 * 20, 64)
    with pytest.raises(ValueError, match="latents are no whole number of blocks"):
        latent_layer(_native.Kernels(1), matrix, case.sizes).store(
            case.rows, np.zeros(4096, np.uint8), "q8_0", 0, *case.angles
        )


@pytest.mark.parametrize("heads", [3, 17])
def test_how_a_sequence_is_cut_does_not_change_a_bit(kernels: _native.Kernels, heads: int) -> None:
    case = Case(heads, 24, 6, 4, 4, 1300, "bf16")  # three runs, one by one or side by side
    kernels.begin_pass(1300)
    whole = case.attended(kernels, [1300], 1300)
    for passes in ([511, 1, 2, 126, 660], [1290, 7, 3]):
        assert np.array_equal(whole, case.attended(kernels, passes, 1300))
    kernels.begin_pass(0)


def test_a_token_with_longer_runs_than_the_one_before_it_is_near_its_twin(kernels: _native.Kernels) -> None:
    case = Case(2, 8, 4, 4, 4, 8195)  # beyond 8192 rows, runs are twice as long
    assert_near(case.attended(kernels, [8190, 5], 5), case.expected(5), "f32")


@pytest.mark.parametrize("passes", [[40], [1] * 40, [1200, 100], [1290, 9, 1]], ids=str)
def test_sinks_take_their_share_once(kernels: _native.Kernels, passes: list[int]) -> None:
    case = Case(3, 24, 4, 5, 4, sum(passes))
    case.sinks = np.array([-2, 5, 9], np.float32)
    assert_near(case.attended(kernels, passes, 40), case.expected(40), "f32")


def test_scores_far_apart_neither_overflow_nor_lose_the_largest(kernels: _native.Kernels) -> None:
    case = Case(4, 32, 8, 8, 8, 300)
    case.queries *= 1000
    assert_near(case.attended(kernels, [290, 10], 300), case.expected(300), "bf16")


def test_sizes_that_do_not_fit_are_refused() -> None:
    kernels, case = _native.Kernels(1), Case(2, 16, 4, 4, 4, 3)
    matrix = _native.Matrix(case.data, "f32", 16, 16)
    for heads, plain, value, rotary in ((3, 4, 4, 4), (2, 4, 3, 4), (2, 0, 8, 4), (2, 4, 4, 3), (2, 4, 4, -2)):
        with pytest.raises(ValueError, match=r"rows|rotary_dim|negative"):
            latent_layer(kernels, matrix, (heads, plain, value, rotary))
    quantised = _native.Matrix(np.zeros(16 * 34, np.uint8), "q8_0", 16, 32)
    with pytest.raises(ValueError, match="by head"):
        latent_layer(kernels, quantised, (2, 4, 4, 4))
    layer = latent_layer(kernels, matrix, (2, 4, 4, 4))
    cos, sin = case.angles
    cache, queries, out = np.zeros(3 * 20 * 4, np.uint8), case.queries.reshape(3, -1), np.empty((3, 8), np.float32)
    layer.store(case.rows, cache, "f32", 0, cos, sin)
    layer.attend(queries, cache, "f32", 0, cos, sin, out)
    with pytest.raises(ValueError, match="too small"):
        layer.store(case.rows, cache, "f32", 1, cos, sin)
    with pytest.raises(ValueError, match="negative"):
        layer.attend(queries, cache, "f32", -1, cos, sin, out)
    with pytest.raises(ValueError, match="f32, f16, bf16 or q8_0"):
        layer.attend(queries, cache, "q4_0", 0, cos, sin, out)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="width"):
        layer.attend(queries[:, :-1].copy(), cache, "f32", 0, cos, sin, out)
    with pytest.raises(ValueError, match="width"):
        layer.attend(queries, cache, "f32", 0, cos, sin, out[:2])
    with pytest.raises(ValueError, match="cos and sin"):
        layer.attend(queries, cache, "f32", 0, cos[:2], sin, out)


CHOSEN = (1, 5, 256, 257, 700)  # how many rows a token chooses: of one run, and of several


def chosen_rows(
    case: Case, tokens: int, kept: KVFormat, kernels: _native.Kernels
) -> tuple[_native.LatentLayer, ByteArray]:
    heads, plain, value, rotary = case.sizes
    matrix = _native.Matrix(case.data, case.kind, heads * (plain + value), case.width - rotary)
    layer = latent_layer(kernels, matrix, case.sizes, case.interleaved, case.scale, case.sinks)
    cache = np.zeros(format_bytes(kept, (case.tokens, case.width)), np.uint8)
    layer.store(case.rows, cache, kept, 0, *case.angles)
    return layer, cache


@pytest.mark.parametrize("kept", ["f32", "bf16", "q8_0"])
@pytest.mark.parametrize("heads", [3, 40])
def test_chosen_rows_count_as_if_they_were_all_that_there_is(
    kernels: _native.Kernels, heads: int, kept: KVFormat
) -> None:
    case = Case(heads, 64, 6, 4, 32, 700, "bf16")
    case.sinks = np.linspace(-2, 2, heads, dtype=np.float32)
    kernels.begin_pass(700)
    layer, cache = chosen_rows(case, 700, kept, kernels)
    rng = np.random.default_rng(heads)
    counts = [CHOSEN[t % len(CHOSEN)] for t in range(40)]
    chosen: IntArray = np.full((40, 701), -1, np.int64)
    queries, expected = case.queries[-40:].reshape(40, -1), np.empty((40, heads * 4), np.float32)
    angles = [np.ascontiguousarray(table[-40:]) for table in case.angles]
    for t, count in enumerate(counts):
        chosen[t, :count] = np.sort(rng.permutation(700)[:count])
        rows = np.ascontiguousarray(cache.reshape(700, -1)[chosen[t, :count]]).reshape(-1)
        cos, sin = (table[t : t + 1] for table in angles)
        layer.attend(queries[t : t + 1], rows, kept, count - 1, cos, sin, expected[t : t + 1])
    for parts in ([40], [1] * 40, [3, 2, 35]):
        found, start = np.full_like(expected, np.nan), 0
        for size in parts:
            part = slice(start, start + size)
            cos, sin = (table[part] for table in angles)
            layer.attend_chosen(queries[part], cache, kept, chosen[part], cos, sin, found[part])
            start += size
        assert np.array_equal(found, expected)
    kernels.begin_pass(0)


def test_rows_that_are_not_there_cannot_be_chosen(kernels: _native.Kernels) -> None:
    case = Case(3, 64, 6, 4, 32, 9, "bf16")
    layer, cache = chosen_rows(case, 9, "f32", kernels)
    queries, out = case.queries[:1].reshape(1, -1), np.empty((1, 12), np.float32)
    cos, sin = (table[:1] for table in case.angles)
    for rows in ([9], [-1], [0, -2], [0, -1, 3]):
        with pytest.raises(ValueError, match="not there"):
            layer.attend_chosen(queries, cache, "f32", np.array([rows]), cos, sin, out)
    with pytest.raises(ValueError, match="each token has a row"):
        layer.attend_chosen(queries, cache, "f32", np.zeros((2, 1), np.int64), cos, sin, out)
