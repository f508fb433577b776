"""The device's operations on hidden states: kernels in Triton's interpreter, their twins, and the native CPU layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from moeinf import _native
from moeinf.gpu import vector_ops
from moeinf.gpu.matrix import MAX_ROWS
from moeinf.gpu.vector_ops import AttentionForm, HeadForm, KeyValues, SlotTensors, TritonVectorOps, VectorOps
from moeinf.types import DType, IntArray
from tests.oracles.torch_vector import TorchVectorOps

TYPES: dict[DType, torch.dtype] = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
CACHE_TOLERANCE = {torch.float32: 1e-5, torch.float16: 2**-10, torch.bfloat16: 2**-7}  # one rounding another way
TWIN = TorchVectorOps()


@pytest.fixture(scope="module")
def kernels() -> VectorOps:
    pytest.importorskip("triton", reason="triton is not installed: nothing to compare with the twins")
    ops = TritonVectorOps(attention_programs=10)
    case = Heads(1, 1, 1, 16)
    case.fill()
    try:
        case.attend(ops, 0)
    except Exception as error:
        if "only 0-dimensional arrays" not in str(error):
            raise
        pytest.skip(f"this version of Triton's interpreter cannot run loops with numpy {np.__version__}")
    return ops


@pytest.fixture(params=["twin", "kernels"])
def ops(request: pytest.FixtureRequest) -> VectorOps:
    return TWIN if request.param == "twin" else request.getfixturevalue("kernels")


@pytest.fixture(scope="module")
def native() -> _native.Kernels:
    return _native.Kernels(1)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32))


def assert_near(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    found, expected = found.float(), expected.float()
    assert not found.isnan().any()
    assert (found - expected).abs().max() <= tolerance * expected.abs().max()


# norms


@pytest.mark.parametrize("shape", [(1, 8), (3, 96), (5, 1030), (2, 1)])
def test_rms_norm_equals_the_native_one_also_in_place(
    ops: VectorOps, native: _native.Kernels, shape: tuple[int, int]
) -> None:
    x, weight = 3 * random(*shape), random(shape[1])
    out, expected = torch.full(shape, torch.nan), np.empty(shape, np.float32)
    ops.rms_norm(x, weight, 1e-5, out)
    _native.rms_norm(native, x.numpy(), weight.numpy(), 1e-5, expected)
    assert_near(out, torch.from_numpy(expected))
    ops.rms_norm(x, weight, 1e-5, x)
    assert torch.equal(x, out)


# heads and attention


class Heads:
    """Queries, keys and values of some tokens, and a cache in which everything not written is NaN."""

    def __init__(
        self,
        tokens: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        capacity: int = 20,
        position: int = 0,
    ) -> None:
        self.q, self.k = random(tokens, heads * head_dim, seed=1), random(tokens, kv_heads * head_dim, seed=2)
        self.v = random(tokens, kv_heads * head_dim, seed=3)
        self.cos, self.sin = rope_tables(capacity, head_dim)
        self.sinks: Tensor | None = None
        self.bias: Tensor | None = None
        self.cap = 0.0
        self.position = torch.tensor([position], dtype=torch.int32)
        self.keys = torch.full((kv_heads, capacity, head_dim), torch.nan, dtype=dtype)
        self.values = self.keys.clone()

    def store(self, ops: VectorOps, norms: bool = False, clip: float = 0.0, interleaved: bool = False) -> None:
        head_dim = self.keys.shape[2]
        q_norm, k_norm = (random(head_dim, seed=4), random(head_dim, seed=5)) if norms else (None, None)
        form = HeadForm(self.cos, self.sin, interleaved, q_norm, k_norm, 1e-6, clip)
        ops.rope_store(self.q, self.k, self.v, form, self.position, KeyValues(self.keys, self.values))

    def fill(self) -> None:
        """As if all positions up to the last token's had been stored."""
        seen = int(self.position) + len(self.q)
        for number, cache in enumerate((self.keys, self.values)):
            cache[:, :seen] = random(*cache[:, :seen].shape, seed=number).to(cache.dtype)
        if self.keys.dtype == torch.bfloat16:  # to which the interpreter rounds towards 0, and a device to nearest
            self.q = self.q.bfloat16().float()

    def attend(
        self,
        ops: VectorOps,
        window: int,
        tokens: slice = slice(None),
        chunked: bool = False,
        ends: IntArray | None = None,
    ) -> Tensor:
        """Of some of the tokens, each at its own position."""
        q = self.q[tokens].contiguous()
        out, position = torch.full_like(q, torch.nan), self.position + (tokens.start or 0)
        form = AttentionForm(self.keys.shape[2] ** -0.5, window, self.sinks, self.bias, chunked, ends, self.cap)
        ops.attend(q, KeyValues(self.keys, self.values), position, int(position), form, out)
        return out


def rope_tables(capacity: int, head_dim: int) -> tuple[Tensor, Tensor]:
    frequencies = 100.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.arange(capacity, dtype=torch.float32)[:, None] * frequencies
    return torch.cos(angles), torch.sin(angles)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(("head_dim", "norms", "clip"), [(96, True, 0.0), (80, False, 0.5), (2, True, 0.7)])
def test_rope_store_equals_its_twin(
    kernels: VectorOps, dtype: torch.dtype, head_dim: int, norms: bool, clip: float
) -> None:
    found, expected = (Heads(3, 6, 2, head_dim, dtype, position=5) for _ in range(2))
    found.store(kernels, norms, clip)
    expected.store(TWIN, norms, clip)
    assert_near(found.q, expected.q)
    for cache, oracle in ((found.keys, expected.keys), (found.values, expected.values)):
        assert_near(cache[:, 5:8], oracle[:, 5:8], CACHE_TOLERANCE[dtype])
        assert cache[:, :5].isnan().all() and cache[:, 8:].isnan().all()
    assert torch.equal(found.k, expected.k) and torch.equal(found.v, expected.v)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_heads_of_an_odd_size_are_stored_as_they_are(kernels: VectorOps, dtype: torch.dtype, clip: float) -> None:
    found, expected = (Heads(3, 6, 2, 15, dtype, position=5) for _ in range(2))
    for heads in (found, expected):
        heads.cos = heads.sin = torch.empty(20, 0)
    found.store(kernels, clip=clip)
    expected.store(TWIN, clip=clip)
    assert torch.equal(found.q, expected.q)
    for cache, oracle in ((found.keys, expected.keys), (found.values, expected.values)):
        assert torch.equal(cache[:, 5:8], oracle[:, 5:8])
        assert cache[:, :5].isnan().all() and cache[:, 8:].isnan().all()


@pytest.mark.parametrize(
    ("head_dim", "rotary_dim", "interleaved"),
    [(24, 24, True), (24, 12, False), (24, 6, True), (20, 2, False), (16, 0, False), (16, 0, True)],
)
@pytest.mark.parametrize("norms", [False, True])
def test_positions_turn_the_front_of_a_head_in_either_kind_of_pairs(
    ops: VectorOps, head_dim: int, rotary_dim: int, interleaved: bool, norms: bool
) -> None:
    """By complex numbers: a turn is a product."""
    found, plain = (Heads(3, 2, 1, head_dim, position=5) for _ in range(2))
    found.cos, found.sin = rope_tables(20, rotary_dim) if rotary_dim else (torch.empty(20, 0), torch.empty(20, 0))
    plain.cos, plain.sin = torch.ones(20, head_dim // 2), torch.zeros(20, head_dim // 2)
    found.store(ops, norms, 0.8, interleaved)
    plain.store(TWIN, norms, 0.8)
    turns = torch.complex(found.cos, found.sin)[5:8]
    wanted_q, wanted_k = (turned(heads, turns, interleaved) for heads in (plain.q.view(3, 2, -1), plain.keys[:, 5:8]))
    assert_near(found.q.view(3, 2, -1), wanted_q)
    assert_near(found.keys[:, 5:8], wanted_k)
    assert torch.equal(found.values[:, 5:8], plain.values[:, 5:8])


def turned(heads: Tensor, turns: Tensor, interleaved: bool) -> Tensor:
    """heads [3, 2, D] of queries or [1, 3, D] of keys, turns [3, rotary_dim / 2]."""
    front, rest = heads[..., : 2 * turns.shape[1]], heads[..., 2 * turns.shape[1] :]
    pairs = front.unflatten(-1, (-1, 2)) if interleaved else front.unflatten(-1, (2, -1)).transpose(-1, -2)
    product = torch.complex(pairs[..., 0], pairs[..., 1]) * (turns[:, None] if len(heads) == 3 else turns)
    parts = torch.stack((product.real, product.imag), -1 if interleaved else -2)
    return torch.cat((parts.flatten(-2), rest), -1)


@pytest.mark.parametrize("format", TYPES)
@pytest.mark.parametrize(("head_dim", "norms", "clip", "window", "tokens"), [
    (16, False, 0.0, 0, 1), (80, True, 0.0, 0, 3), (12, False, 0.3, 4, 8), (16, True, 0.0, 6, 12),
])  # fmt: skip
def test_a_layer_of_twins_equals_the_native_one(
    native: _native.Kernels, format: DType, head_dim: int, norms: bool, clip: float, window: int, tokens: int
) -> None:
    """Two calls, the second behind the first: norm, projections, heads, attention and the projection of the outputs."""
    hidden, heads, kv_heads, capacity = 32, 6, 2, 40
    shapes = [(heads * head_dim, hidden), *[(kv_heads * head_dim, hidden)] * 2, (hidden, heads * head_dim)]
    wq, wk, wv, wo = weights = [random(*shape, seed=10 + i) / 4 for i, shape in enumerate(shapes)]
    matrices = [_native.Matrix(w.numpy().ravel().view(np.uint8), "f32", *w.shape) for w in weights]
    norm = random(hidden)
    q_norm, k_norm = (random(head_dim, seed=s) if norms else None for s in (1, 2))
    tensors = _native.AttentionTensors(
        query=matrices[0],
        key=matrices[1],
        value=matrices[2],
        output=matrices[3],
        norm=norm.numpy(),
        query_norm=None if q_norm is None else q_norm.numpy(),
        key_norm=None if k_norm is None else k_norm.numpy(),
    )
    shape = _native.AttentionShape(
        head_dim=head_dim, norm_eps=1e-6, head_norm="head" if norms else "none", clip=clip, window=window
    )
    layer = _native.AttentionLayer(native, tensors, shape)
    cache_bytes = kv_heads * capacity * head_dim * TYPES[format].itemsize
    native_keys, native_values = (np.zeros(cache_bytes, np.uint8) for _ in range(2))
    keys, values = (torch.zeros(kv_heads, capacity, head_dim, dtype=TYPES[format]) for _ in range(2))
    cos, sin = rope_tables(capacity, head_dim)
    for start in (0, tokens):
        x, place = random(tokens, hidden, seed=start), slice(start, start + tokens)
        expected = x.numpy().copy()
        layer.run(expected, native_keys, native_values, format, capacity, start, cos[place].numpy(), sin[place].numpy())
        normed, position = torch.empty_like(x), torch.tensor([start], dtype=torch.int32)
        TWIN.rms_norm(x, norm, 1e-6, normed)
        q, k, v = (normed @ w.T for w in (wq, wk, wv))
        form, cache = HeadForm(cos, sin, False, q_norm, k_norm, 1e-6, clip), KeyValues(keys, values)
        TWIN.rope_store(q, k, v, form, position, cache)
        mixed = torch.empty_like(q)
        TWIN.attend(q, cache, position, start, AttentionForm(head_dim**-0.5, window), mixed)
        assert_near(x + mixed @ wo.T, torch.from_numpy(expected), max(2e-5, CACHE_TOLERANCE[TYPES[format]]))


FEW_TOKENS = [  # heads, kv_heads, head_dim, tokens, position, window
    (4, 4, 16, 1, 0, 0),  # one position seen
    (6, 2, 80, 3, 70, 0),  # heads of no power of two, groups of three, shares of which the last is cut
    (40, 2, 96, 2, 130, 50),  # groups beyond 16, a window
    (6, 3, 4, 1, 700, 0),  # shares of several blocks
]
FEW_TOKENS_OF_MLA = [  # in one type, as the interpreter takes seconds for each
    (2, 1, 576, 8, 40, 7),  # blocks of few positions, a window that the first tokens do not fill a block with
    (40, 1, 576, 1, 20, 0),  # a group that several programs share
]


@pytest.mark.parametrize(
    ("dtype", "heads", "kv_heads", "head_dim", "tokens", "position", "window"),
    [
        *((dtype, *sizes) for sizes in FEW_TOKENS for dtype in TYPES.values()),
        *((torch.bfloat16, *sizes) for sizes in FEW_TOKENS_OF_MLA),
    ],
)
def test_attention_of_a_few_tokens_equals_its_twin(
    kernels: VectorOps,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    head_dim: int,
    tokens: int,
    position: int,
    window: int,
) -> None:
    case = Heads(tokens, heads, kv_heads, head_dim, dtype, position + tokens + 9, position)
    case.fill()
    assert_near(case.attend(kernels, window), case.attend(TWIN, window), 2e-5)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(
    ("tokens", "position", "window"),
    [(1, 0, 0), (3, 70, 0), (2, 130, 50), (MAX_ROWS + 12, 0, 0), (MAX_ROWS + 12, 0, 5), (MAX_ROWS + 12, 13, 6)],
)
def test_sinks_take_their_share_of_the_weights(
    kernels: VectorOps, dtype: torch.dtype, tokens: int, position: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_ops, "QUERY_BLOCK", 7)
    case = Heads(tokens, 6, 2, 20, dtype, position + tokens + 9, position)
    case.fill()
    without = case.attend(TWIN, window)
    case.sinks = torch.tensor([-9.0, 0, 1.3, 2, 40, -1])  # hardly anything to all of the weights
    expected, found = case.attend(TWIN, window), case.attend(kernels, window)
    tolerance = 2 * CACHE_TOLERANCE[dtype] if tokens > MAX_ROWS else 2e-5
    assert_near(found, expected, tolerance)
    expected, without = (values.view(tokens, 6, 20) for values in (expected, without))
    assert_near(expected[:, 0], without[:, 0], 1e-3)
    assert expected[:, 4].abs().max() < 1e-6
    assert ((expected[:, 3].norm(dim=-1) / without[:, 3].norm(dim=-1)) < 0.95).all()


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(("tokens", "position", "window"), [(1, 0, 0), (3, 70, 0), (2, 130, 50), (MAX_ROWS, 0, 5)])
def test_scores_are_capped(kernels: VectorOps, dtype: torch.dtype, tokens: int, position: int, window: int) -> None:
    case = Heads(tokens, 6, 2, 20, dtype, position + tokens + 9, position)
    case.fill()
    without = case.attend(TWIN, window)
    case.cap = 0.3
    expected = case.attend(TWIN, window)
    assert_near(case.attend(kernels, window), expected, 2e-5)
    assert position == 0 or (expected - without).abs().max() > 1e-2


def test_the_twins_sinks_are_those_of_a_softmax_with_one_more_score() -> None:
    case = Heads(1, 2, 1, 4, position=6)
    case.fill()
    case.sinks = torch.tensor([0.5, -2.0])
    scores = case.q.view(2, 4) @ case.keys[0, :7].T / 2
    powers = scores.exp()
    wanted = powers @ case.values[0, :7] / (powers.sum(1) + case.sinks.exp())[:, None]
    assert_near(case.attend(TWIN, 0).view(2, 4), wanted)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "rows", "tokens", "position"),
    [(4, 4, 4, 1, 0), (6, 6, 3, 2, 70), (40, 2, 40, 1, 130), (6, 3, 2, MAX_ROWS, 200)],
)
def test_scores_are_biased_by_how_far_back_a_place_lies(
    kernels: VectorOps, heads: int, kv_heads: int, rows: int, tokens: int, position: int
) -> None:
    case = Heads(tokens, heads, kv_heads, 24, position=position, capacity=position + tokens + 9)
    case.fill()
    bias = case.bias = random(rows, case.keys.shape[1], seed=7)
    expected = case.attend(TWIN, 0)
    assert_near(case.attend(kernels, 0), expected, 2e-5)
    token, head = tokens - 1, heads - 1
    seen = position + token + 1
    keys, values = (cache[head * kv_heads // heads, :seen] for cache in (case.keys, case.values))
    scores = keys @ case.q[token].view(heads, 24)[head] * 24**-0.5 + bias[head % rows, :seen].flip(0)
    assert_near(expected[token].view(heads, 24)[head], torch.softmax(scores, 0) @ values)


@pytest.mark.parametrize(("tokens", "position", "window"), [(1, 90, 0), (3, 90, 37), (MAX_ROWS, 0, 0)])
def test_each_token_may_have_sinks_and_biases_of_its_own_up_to_some_distance(
    kernels: VectorOps, tokens: int, position: int, window: int
) -> None:
    case = Heads(tokens, 6, 2, 24, position=position, capacity=120)
    case.fill()
    case.bias, case.sinks = random(tokens * 6, 33, seed=7), random(tokens * 6, seed=8)
    expected = case.attend(TWIN, window)
    assert_near(case.attend(kernels, window), expected, 2e-5)
    token, head = tokens - 1, 5
    seen = slice(max(0, position + token + 1 - (window or 120)), position + token + 1)
    keys, values = (cache[1, seen] for cache in (case.keys, case.values))
    scores = keys @ case.q[token].view(6, 24)[head] * 24**-0.5
    near = min(33, len(scores))
    scores[-near:] += case.bias[-1, :near].flip(0)
    shares = torch.softmax(torch.cat([scores, case.sinks[-1:]]), 0)[:-1]
    assert_near(expected[token].view(6, 24)[head], shares @ values)


@pytest.mark.parametrize(("tokens", "position"), [(3, 70), (1, 29), (MAX_ROWS + 12, 0), (MAX_ROWS + 12, 13)])
def test_a_token_sees_its_own_chunk_up_to_itself(
    kernels: VectorOps, tokens: int, position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_ops, "QUERY_BLOCK", 7)
    case = Heads(tokens, 4, 2, 20, position=position, capacity=100)
    case.fill()
    expected = case.attend(TWIN, 10, chunked=True)
    assert_near(case.attend(kernels, 10, chunked=True), expected, 2e-5)
    at = position + tokens - 1
    seen = slice(at - at % 10, at + 1)
    scores = case.keys[1, seen] @ case.q[-1].view(4, 20)[3] * 20**-0.5
    assert_near(expected[-1].view(4, 20)[3], torch.softmax(scores, 0) @ case.values[1, seen])


@pytest.mark.parametrize(("tokens", "position", "window"), [(6, 0, 0), (6, 30, 9), (25, 0, 0), (25, 13, 9)])
def test_a_token_of_a_picture_sees_what_is_behind_it(
    kernels: VectorOps, tokens: int, position: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Heads(tokens, 4, 2, 20, position=position, capacity=100)
    case.fill()
    ends = position + np.arange(1, tokens + 1)
    ends[1:5] = position + 5
    ends[tokens - 2 :] = position + tokens
    expected = case.attend(TWIN, window, ends=ends)
    assert not torch.equal(expected[1:4], case.attend(TWIN, window)[1:4])
    for block in (1024, 3):
        monkeypatch.setattr(vector_ops, "QUERY_BLOCK", block)
        assert_near(case.attend(kernels, window, ends=ends), expected, 2e-5)
    seen = slice(max(0, position + 2 - window) if window else 0, position + 5)
    scores = case.keys[0, seen] @ case.q[1].view(4, 20)[1] * 20**-0.5
    assert_near(expected[1].view(4, 20)[1], torch.softmax(scores, 0) @ case.values[0, seen])


def test_attention_gives_the_same_cut_into_more_shares(kernels: VectorOps) -> None:
    case = Heads(1, 2, 2, 16, position=99, capacity=100)
    case.fill()
    assert_near(case.attend(TritonVectorOps(), 0), case.attend(kernels, 0), 2e-6)


@pytest.mark.parametrize("window", [0, 33])
def test_a_token_attends_alike_alone_and_among_others(kernels: VectorOps, window: int) -> None:
    case = Heads(MAX_ROWS, 6, 2, 16, torch.bfloat16, 200, position=170)
    case.fill()
    together = case.attend(kernels, window)
    for token in (0, MAX_ROWS - 1):
        assert torch.equal(case.attend(kernels, window, slice(token, token + 1))[0], together[token])


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(("position", "window"), [(0, 0), (0, 5), (0, 100), (13, 0), (13, 6)])
def test_attention_of_many_tokens_equals_its_twin_in_blocks_of_any_size(
    kernels: VectorOps, dtype: torch.dtype, position: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Heads(MAX_ROWS + 12, 6, 2, 20, dtype, 50, position)
    case.fill()
    expected = case.attend(TWIN, window)
    for block, mask in ((1024, 1 << 25), (7, 1 << 25), (1024, 100)):
        monkeypatch.setattr(vector_ops, "QUERY_BLOCK", block)
        monkeypatch.setattr(vector_ops, "MASK_ELEMENTS", mask)
        assert_near(case.attend(kernels, window), expected, 2 * CACHE_TOLERANCE[dtype])


# routing


def route(ops: VectorOps, logits: Tensor, k: int, normalise: bool) -> tuple[Tensor, Tensor]:
    ids = torch.full((len(logits), k), -1, dtype=torch.int32)
    weights = torch.full((len(logits), k), torch.nan)
    ops.softmax_topk(logits, k, normalise, ids, weights)
    return ids, weights


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(("experts", "k"), [(5, 5), (60, 4), (128, 8), (384, 6), (512, 1)])
def test_routing_equals_the_native_router(
    ops: VectorOps, native: _native.Kernels, experts: int, k: int, normalise: bool
) -> None:
    x, gate, norm = random(3, 16), random(experts, 16), np.ones(16, np.float32)
    matrix = _native.Matrix(gate.numpy().ravel().view(np.uint8), "f32", experts, 16)
    hidden, expected_ids = np.empty((3, 16), np.float32), np.empty((3, k), np.int64)
    expected = np.empty((3, k), np.float32)
    router = _native.RouterLayer(native, matrix, norm, 1e-6, k, normalise)
    router.run(x.numpy(), hidden, expected_ids, expected)
    ids, weights = route(ops, torch.from_numpy(hidden) @ gate.T, k, normalise)
    assert ids.tolist() == expected_ids.tolist()
    assert_near(weights, torch.from_numpy(expected))


@pytest.mark.filterwarnings("ignore:invalid value")  # 0 / 0, in numpy under the interpreter
def test_ties_go_to_the_lowest_id_and_nan_counts_as_the_smallest_and_spoils_the_weights(ops: VectorOps) -> None:
    nan = torch.nan
    logits = torch.tensor([[1.0, 2, 2, 1, 2], [nan, 0, nan, 5, nan], [nan] * 5, [-200.0, 0, -200, -300, 0]])
    ids, weights = route(ops, logits, 4, normalise=True)
    assert ids.tolist() == [[1, 2, 4, 0], [3, 1, 0, 2], [0, 1, 2, 3], [1, 4, 0, 2]]
    assert_near(weights[[0, 3]].sum(1), torch.ones(2))
    assert weights[3, 2:].tolist() == [0, 0] and weights[[1, 2]].isnan().all()


def test_the_outputs_of_pairs_are_added_one_after_the_other(ops: VectorOps) -> None:
    """Rounding shows the order: 1 is lost beside 1e8, but not once 1e8 has been taken away again."""
    pairs = torch.tensor([[1.0], [1e8], [-1e8], [1e8], [-1e8], [1.0]]).expand(-1, 300).contiguous()
    out = torch.full((2, 300), 0.5)
    ops.combine(pairs, torch.ones(2, 3), out)
    assert out[0].eq(0).all() and out[1].eq(1).all()


def test_a_tokens_sum_has_the_same_bits_whatever_the_others(kernels: VectorOps) -> None:
    pairs, weights, start = random(5 * 6, 700), random(5, 6), random(5, 700, seed=1)
    together, expected = start.clone(), start.clone()
    kernels.combine(pairs, weights, together)
    TWIN.combine(pairs, weights, expected)
    assert_near(together, expected)
    for token in range(5):
        alone = start[token : token + 1].clone()
        kernels.combine(pairs[token * 6 : token * 6 + 6].clone(), weights[token : token + 1].clone(), alone)
        assert torch.equal(alone[0], together[token])


# slots


def empty_table(layers: int, experts: int, slots: int, step: int = 0, classes: int = 1) -> SlotTensors:
    keys = layers * experts
    return SlotTensors(
        torch.full((keys,), -1, dtype=torch.int32), torch.full((slots,), -1, dtype=torch.int32),
        1000 + 7 * torch.arange(slots), torch.arange(slots, dtype=torch.int32) % classes,
        50_000 + 3 * torch.arange(keys), torch.zeros(keys + 1), torch.zeros(classes, dtype=torch.int64),
        experts, step, [layer % classes for layer in range(layers)],
    )  # fmt: skip


def claim(ops: VectorOps, table: SlotTensors, layer: int, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    addresses, copies = torch.full((len(ids),), -5), torch.full((len(ids), 2), -5)
    ops.claim(torch.tensor(ids, dtype=torch.int32), layer, table, addresses, copies)
    return addresses, copies


def slots_by_key(table: SlotTensors) -> dict[int, int]:
    """What the table holds, after a check that both its sides say the same."""
    held = {key: slot for key, slot in enumerate(table.slot_of.tolist()) if slot >= 0}
    assert held == {key: slot for slot, key in enumerate(table.key_of.tolist()) if key >= 0}
    return held


def test_a_claim_takes_empty_slots_first_then_the_least_scores_that_the_call_does_not_use(ops: VectorOps) -> None:
    table = empty_table(layers=2, experts=4, slots=3)
    addresses, copies = claim(ops, table, 0, [2, 0])
    assert slots_by_key(table) == {2: 0, 0: 1}
    assert addresses.tolist() == [1000, 1007] and copies.tolist() == [[50_006, 1000], [50_000, 1007]]
    table.scores[:] = torch.tensor([-3.0, 0, -4, 0, 0, 0, 0, 0, -9])
    claim(ops, table, 1, [3])
    assert slots_by_key(table) == {2: 0, 0: 1, 7: 2}
    addresses, copies = claim(ops, table, 0, [1, 2])  # 2 has the least score, but is used
    assert slots_by_key(table) == {2: 0, 1: 1, 7: 2}
    assert addresses.tolist() == [1007, 1000] and copies.tolist() == [[50_003, 1007], [0, 0]]
    assert table.misses.tolist() == [4]


def test_a_layer_that_comes_soon_is_kept_and_so_is_what_the_token_has_used(ops: VectorOps) -> None:
    table = empty_table(layers=3, experts=4, slots=3, step=3)
    for layer in range(3):
        claim(ops, table, layer, [0])
    table.scores[:] = torch.tensor([0.0] * 12 + [-6])
    claim(ops, table, 0, [1])  # 0 is of this layer: three layers until then, one and two until the others
    assert sorted(slots_by_key(table)) == [1, 4, 8]
    table.scores[[4, 8]] = -5.0
    claim(ops, table, 1, [1])  # -2, -8 and -6 with the distances: 4 has just had its turn
    assert sorted(slots_by_key(table)) == [1, 5, 8]
    table.scores[[1, 5, 8]] = torch.tensor([-4.5, -60, -5.5])
    claim(ops, table, 1, [1])
    assert table.scores[[1, 5, 8]].tolist() == [-4.5, -6, -5.5], "the token has used 5"
    claim(ops, table, 2, [1])  # -5.5, -8 and -8.5
    assert sorted(slots_by_key(table)) == [1, 5, 9] and table.misses.tolist() == [6]


@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize(
    ("experts", "slots", "k", "classes"), [(12, 5, 5, 1), (7, 30, 3, 2), (24, 45, 8, 3), (8, 9, 1, 1)]
)
def test_claims_equal_a_plain_model_of_the_table(
    ops: VectorOps, experts: int, slots: int, k: int, classes: int, step: int
) -> None:
    rng = np.random.default_rng(slots)
    layers = 3
    table = empty_table(layers, experts, slots, step, classes)
    model: dict[int, int] = {}  # slot of each key
    misses = [0] * classes
    for turn in range(30):
        scores = rng.choice(np.array([-np.inf, -2.5, -1, 0, 1e-30, 3, 4, 7, np.inf], np.float32), layers * experts + 1)
        table.scores[:] = torch.from_numpy(scores)
        layer, ids = turn % layers, rng.permutation(experts)[:k].tolist()
        addresses, copies = claim(ops, table, layer, ids)
        wanted = [layer * experts + expert for expert in ids]
        raised = scores.copy()
        raised[wanted] = np.maximum(scores[wanted], scores[-1])
        assert np.array_equal(table.scores.numpy(), raised)
        if step:
            ahead = np.arange(layers) - layer
            scores[:-1] -= np.repeat(np.where(ahead > 0, ahead, ahead + step), experts).astype(np.float32)
        for place, key in enumerate(wanted):
            missing = key not in model
            if missing:
                misses[layer % classes] += 1
                empty = sorted(set(range(layer % classes, slots, classes)) - set(model.values()))
                others = [k for k in model if k not in wanted and k // experts % classes == layer % classes]
                victim = min(others, key=lambda k: (scores[k], model[k]), default=-1)
                model[key] = empty[0] if empty else model.pop(victim)
            address = 1000 + 7 * model[key]
            assert addresses[place] == address
            assert copies[place].tolist() == ([50_000 + 3 * key, address] if missing else [0, 0])
        assert slots_by_key(table) == model
    assert table.misses.tolist() == misses


def test_gather_copies_blocks_by_their_addresses_and_leaves_source_0_alone(ops: VectorOps) -> None:
    num_bytes = 5 * 4096
    host = torch.from_numpy(np.random.default_rng(0).integers(1, 256, (3, num_bytes), np.uint8))
    slots = torch.zeros((4, num_bytes + 16), dtype=torch.uint8)
    copies = torch.tensor(
        [
            [host[2].data_ptr(), slots[0].data_ptr()],
            [0, slots[1].data_ptr()],
            [0, 0],
            [host[0].data_ptr(), slots[3].data_ptr()],
        ]
    )
    ops.gather(copies, num_bytes)
    assert torch.equal(slots[0, :num_bytes], host[2]) and torch.equal(slots[3, :num_bytes], host[0])
    assert not slots[1:3].any() and not slots[:, num_bytes:].any()
