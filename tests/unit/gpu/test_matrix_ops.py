"""Products with weights in every format: kernels in Triton's interpreter, their twins, the native reading of blocks.

The interpreter cuts bits off where a GPU rounds to bf16. Activations here are bf16 numbers already, so that decode,
which rounds nothing else, has to agree closely; tiles of many rows round quantised weights, and get that much room.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from moeinf import _native
from moeinf.gpu import groups as grouping
from moeinf.gpu import matrix_ops
from moeinf.gpu.groups import make_groups
from moeinf.gpu.matrix import MAX_ROWS, PLAIN_DTYPES, DeviceMatrix, ExpertPart, Groups, expert_parts_of
from moeinf.gpu.matrix_ops import MatrixOps, TritonMatrixOps, decode_tile
from moeinf.types import DEVICE_FORMATS, FORMAT_BLOCKS, ExpertForm, ExpertLayout, Format, TensorSpec, format_bytes
from tests.oracles.torch_matrix import TorchMatrixOps, dequantise

FORMATS = list(DEVICE_FORMATS)
CPU = torch.device("cpu")
TWIN = TorchMatrixOps()
UNTOUCHED = -77.0
DECODE_TOLERANCE = 1e-5  # of the sum of magnitudes: only the order of additions differs
BF16_BIT = 2.0**-7


@pytest.fixture
def kernels() -> TritonMatrixOps:
    """With several rows a program although matrices are small, and a scratch that holds 20 rows of 288."""
    pytest.importorskip("triton", reason="triton is not installed: nothing to compare with the twins")
    return TritonMatrixOps(linear_programs=3, expert_programs=3, scratch_weights=20 * 288)


@pytest.fixture(params=["twin", "kernels"])
def ops(request: pytest.FixtureRequest) -> MatrixOps:
    return TWIN if request.param == "twin" else request.getfixturevalue("kernels")


def random(*shape: int, seed: int = 0) -> Tensor:
    """f32 numbers that bf16 has too."""
    values = torch.from_numpy(np.random.default_rng((seed, *shape)).standard_normal(shape, np.float32))
    return values.bfloat16().float()


def random_blocks(format: Format, rows: int, cols: int, seed: int = 0) -> Tensor:
    """Any blocks, so that every code and scale occurs, but for weights that are no numbers or too far apart."""
    if format in PLAIN_DTYPES:
        return (0.1 * random(rows, cols, seed=seed)).to(PLAIN_DTYPES[format]).view(torch.uint8).reshape(-1)
    num_bytes = FORMAT_BLOCKS[format][1]
    shape = (format_bytes(format, (rows, cols)) // num_bytes, num_bytes)
    rng = np.random.default_rng((seed, rows, cols))
    blocks = rng.integers(0, 256, shape, np.uint8)
    if format == "mxfp4":
        blocks[:, 0] = 118 + blocks[:, 0] % 8
    for start in {"mxfp4": (), "q4_k": (0, 2)}.get(format, (0,)):
        blocks[:, start : start + 2] = (rng.uniform(-0.002, 0.002, (len(blocks), 1)).astype(np.float16)).view(np.uint8)
    return torch.from_numpy(blocks.reshape(-1))


def matrix(format: Format, rows: int, cols: int, seed: int = 0) -> DeviceMatrix:
    return DeviceMatrix(random_blocks(format, rows, cols, seed), format, rows, cols)


def cols_of(format: Format) -> int:
    """No power of two, and no whole number of steps of a program."""
    return {"q4_k": 768}.get(format, 300 if format in PLAIN_DTYPES else 288)


def assert_close(found: Tensor, wanted: Tensor, magnitudes: Tensor, tolerance: float) -> None:
    excess = ((found - wanted).abs() / (magnitudes * tolerance + 1e-30)).max()
    assert excess <= 1, f"{excess:.3g} times what rounding explains"


# ---- weights and dense products


@pytest.mark.parametrize("format", FORMATS)
def test_the_twin_reads_any_block_as_the_native_kernels_do(format: Format) -> None:
    rows, cols = 40, 10 * FORMAT_BLOCKS[format][0]
    blocks = np.random.default_rng(3).integers(0, 256, (400, FORMAT_BLOCKS[format][1]), np.uint8)
    for high_byte in {"mxfp4": (0,), "q4_k": (1, 3), "q8_0": (1,), "q4_0": (1,), "iq4_nl": (1,)}.get(format, (-1,)):
        blocks[:, high_byte] &= 0xBB  # an exponent that is not all ones, the least one of all among them
    wanted = np.empty((rows, cols), np.float32)
    _native.dequantise(format, blocks.reshape(-1), rows, cols, wanted)
    found = dequantise(DeviceMatrix(torch.from_numpy(blocks.reshape(-1)), format, rows, cols)).numpy()
    assert np.isfinite(wanted).all() and np.array_equal(found.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("format", FORMATS)
def test_few_rows_are_multiplied_by_the_exact_weights(ops: MatrixOps, format: Format) -> None:
    tokens = 2
    w, x, bias = matrix(format, 13, cols_of(format)), random(tokens, cols_of(format)), random(13)
    weights = np.empty((w.rows, w.cols), np.float32)
    _native.dequantise(format, w.data.numpy(), w.rows, w.cols, weights)
    wanted = x.numpy().astype(np.float64) @ weights.T
    magnitudes = torch.from_numpy(np.abs(x.numpy()) @ np.abs(weights).T)
    out = torch.full((tokens, 13), UNTOUCHED)
    ops.linear(x, w, out)
    assert_close(out, torch.from_numpy(wanted), magnitudes, DECODE_TOLERANCE)
    ops.linear(x, w, out, bias=bias, add=True)
    assert_close(out, torch.from_numpy(2 * wanted) + bias, 2 * magnitudes + bias.abs(), DECODE_TOLERANCE)


@pytest.mark.parametrize("format", FORMATS)
def test_many_rows_are_multiplied_by_parts_of_the_matrix(kernels: MatrixOps, format: Format) -> None:
    w, x, bias = matrix(format, 50, cols_of(format)), random(MAX_ROWS + 1, cols_of(format)), random(50)
    found, wanted = random(MAX_ROWS + 1, 50), random(MAX_ROWS + 1, 50)
    kernels.linear(x, w, found, bias=bias, add=True)
    TWIN.linear(x, w, wanted, bias=bias, add=True)
    tolerance = {"f32": DECODE_TOLERANCE, "f16": 2**-10}.get(format, BF16_BIT)  # torch on a CPU rounds the sums too
    assert_close(found, wanted, x.abs() @ dequantise(w).abs().T, tolerance)


def test_many_rows_replace_what_was_there_unless_added(ops: MatrixOps) -> None:
    w, x, out = matrix("q8_0", 50, 288), random(MAX_ROWS + 1, 288), torch.full((MAX_ROWS + 1, 50), float("nan"))
    ops.linear(x, w, out)
    assert_close(out, x @ dequantise(w).T, x.abs() @ dequantise(w).abs().T, BF16_BIT)


@pytest.mark.parametrize("format", ["bf16", "q4_0"])
def test_a_row_has_the_same_bits_alone_and_among_eight(kernels: MatrixOps, format: Format) -> None:
    w, x = matrix(format, 3, cols_of(format)), random(MAX_ROWS, cols_of(format))
    alone, together = torch.empty(1, 3), torch.empty(MAX_ROWS, 3)
    kernels.linear(x, w, together)
    for row in (0, MAX_ROWS - 1):
        kernels.linear(x[row, None], w, alone)
        assert torch.equal(alone[0], together[row])


@pytest.mark.parametrize("format", ["f16", "bf16"])
def test_activations_take_the_type_of_plain_weights(ops: MatrixOps, format: Format) -> None:
    """What that type has no bits for does not show: 0.9 of a step is rounded up, or by the interpreter down."""
    step = 2.0**-10 if format == "f16" else 2.0**-7
    w = DeviceMatrix(torch.ones(8, dtype=PLAIN_DTYPES[format]).view(torch.uint8), format, 1, 8)
    out = torch.empty(1, 1)
    ops.linear(torch.full((1, 8), 1 + 0.9 * step), w, out)
    assert out.item() in (8.0, 8 * (1 + step))


def test_float32_weights_keep_every_bit_of_the_activations(ops: MatrixOps) -> None:
    w = DeviceMatrix(torch.ones(1).view(torch.uint8), "f32", 1, 1)
    x, out = torch.full((1, 1), 1 + 2.0**-23), torch.empty(1, 1)
    ops.linear(x, w, out)
    assert torch.equal(out, x)


# ---- experts

HIDDEN, INTERMEDIATE = 256, 96
EXPERT_FORMATS: list[tuple[Format, Format, Format]] = [
    ("bf16", "bf16", "bf16"), ("f16", "f16", "f16"), ("f32", "f32", "f32"), ("q8_0", "q8_0", "q8_0"),
    ("q4_k", "q4_0", "iq4_nl"), ("mxfp4", "mxfp4", "mxfp4"), ("q4_k", "q4_k", "q8_0"), ("q8_0", "bf16", "q4_0"),
]  # fmt: skip
SILU = ExpertForm()
# With the format of their biases.
EXPERT_FORMS: list[tuple[ExpertForm, Format]] = [
    (ExpertForm("swiglu_clamped", biased=True, limit=2.0), "bf16"), (ExpertForm("gelu", gated=False), "f32"),
    (ExpertForm("relu", gated=False, biased=True), "f32"), (ExpertForm("relu", biased=True), "f16"),
    (ExpertForm("relu2", gated=False), "f32"), (ExpertForm("silu", biased=True), "bf16"), (ExpertForm("gelu"), "f32"),
    (ExpertForm("gelu_tanh"), "f32"), (ExpertForm("quick_gelu"), "f32"), (ExpertForm("silu_clamped", limit=2.0), "f32"),
    (ExpertForm("clamped_silu", limit=2.0), "f32"), (ExpertForm("softcapped", limit=2.0, gate_limit=1.5), "f32"),
    (ExpertForm("softcapped", gate_limit=1.5), "f32"),
]  # fmt: skip


class Experts:
    """Blocks of experts one behind the other, at multiples of 4 KiB as in a slot, with their parts at 64 bytes."""

    def __init__(
        self, formats: tuple[Format, Format, Format], count: int, form: ExpertForm = SILU, bias: Format = "f32"
    ) -> None:
        shapes = {"gate": (INTERMEDIATE, HIDDEN), "up": (INTERMEDIATE, HIDDEN), "down": (HIDDEN, INTERMEDIATE)}
        named = dict(zip(shapes, formats, strict=True))
        if not form.gated:
            del named["gate"]
        if form.biased:
            named |= {f"{name}_bias": bias for name in named}
        self.form, end = form, 0
        by_name: dict[str, ExpertPart] = {}
        for name, format in named.items():
            shape = shapes[name] if name in shapes else (shapes[name.removesuffix("_bias")][0], 1)
            by_name[name] = ExpertPart(format, *shape, end)
            end = -(-(end + format_bytes(format, shape)) // 64) * 64
        layout = ExpertLayout(
            tuple(
                TensorSpec(
                    name,
                    part.format,
                    (part.rows, part.cols) if name in shapes else (part.rows,),
                    part.offset_bytes,
                    format_bytes(part.format, (part.rows, part.cols)),
                )
                for name, part in by_name.items()
            ),
            end,
            end,
        )
        self.parts, parts = expert_parts_of(layout, form), list(by_name.values())
        stride = -(-end // 4096) * 4096
        self.memory = torch.zeros(count * stride + 4096, dtype=torch.uint8)
        first = -self.memory.data_ptr() % 4096
        self.addresses = self.memory.data_ptr() + first + stride * np.arange(count)
        for expert in range(count):
            for number, part in enumerate(parts):
                data = random_blocks(part.format, part.rows, part.cols, seed=10 * expert + number)
                start = first + expert * stride + part.offset_bytes
                self.memory[start : start + len(data)] = data
        self.weights = [
            {
                name: dequantise(matrix(part.format, part.rows, part.cols, seed=10 * expert + number))
                for number, (name, part) in enumerate(by_name.items())
            }
            for expert in range(count)
        ]

    def outputs(self, x: Tensor, act: Tensor, ids: list[int]) -> tuple[Tensor, ...]:
        """What gate_up and down give of each pair, and the magnitudes of the sums, by nothing but torch's products.

        The magnitude of f(g) * u takes how far an error of g or u can move it: no f is steeper than 1.15."""
        ups, downs = [], []
        for pair, expert in enumerate(ids):
            row = x[pair // (len(ids) // len(x))]
            u, u_size = self._product(expert, "up", row)
            g, g_size = self._product(expert, "gate", row) if self.form.gated else (u, u_size)
            f, other = self._activated(g), u if self.form.gated else torch.ones(1)
            if self.form.activation == "swiglu_clamped":
                other = u.clip(-self.form.limit, self.form.limit) + 1
            elif self.form.activation in ("silu_clamped", "clamped_silu"):
                other = u.clip(-self.form.limit, self.form.limit)
            elif self.form.activation == "softcapped":
                other = self.form.limit * torch.tanh(u / self.form.limit) if self.form.limit else u
            ups.append((f * other, 1.15 * g_size * other.abs() + f.abs() * u_size))
            downs.append(self._product(expert, "down", act[pair]))
        return tuple(torch.stack(column) for columns in (ups, downs) for column in zip(*columns, strict=True))

    def _product(self, expert: int, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """With the bias, and the magnitude of the sum."""
        weights = self.weights[expert]
        bias = weights[f"{name}_bias"][:, 0] if self.form.biased else torch.zeros(1)
        return weights[name] @ x + bias, weights[name].abs() @ x.abs() + bias.abs()

    def _activated(self, g: Tensor) -> Tensor:
        match self.form.activation:
            case "silu":
                return g / (1 + torch.exp(-g))
            case "gelu":
                return 0.5 * g * (1 + torch.erf(g / 2**0.5))
            case "gelu_tanh":
                return 0.5 * g * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (g + 0.044715 * g**3)))
            case "quick_gelu":
                return g / (1 + torch.exp(-1.702 * g))
            case "relu":
                return g * (g > 0)
            case "relu2":
                return g * g * (g > 0)
            case "swiglu_clamped":
                g = torch.where(g > self.form.limit, self.form.limit, g)
                return g / (1 + torch.exp(-1.702 * g))
            case "silu_clamped":
                g = torch.where(g > self.form.limit, self.form.limit, g)
                return g / (1 + torch.exp(-g))
            case "softcapped":
                return self.form.gate_limit * torch.tanh(g / self.form.gate_limit) / (1 + torch.exp(-g))
            case "clamped_silu":
                return (g / (1 + torch.exp(-g))).clip(max=self.form.limit)


@pytest.mark.parametrize("formats", EXPERT_FORMATS, ids="-".join)
def test_pairs_are_computed_by_the_expert_at_their_address(
    ops: MatrixOps, formats: tuple[Format, Format, Format]
) -> None:
    experts, ids = Experts(formats, 3), [2, 0, 1, 2]
    addresses = torch.from_numpy(experts.addresses[ids])
    addresses[1] = 0
    x, act = random(2, HIDDEN), random(4, INTERMEDIATE)
    found_act, found = torch.full((4, INTERMEDIATE), UNTOUCHED), torch.full((4, HIDDEN), UNTOUCHED)
    ops.gate_up(x, addresses, experts.parts, found_act)
    ops.down(act, addresses, experts.parts, found)
    assert (found_act[1] == UNTOUCHED).all() and (found[1] == UNTOUCHED).all()
    here = [0, 2, 3]
    wanted_act, act_sizes, wanted, sizes = experts.outputs(x, act, ids)
    assert_close(found_act[here], wanted_act[here], act_sizes[here], DECODE_TOLERANCE)
    assert_close(found[here], wanted[here], sizes[here], DECODE_TOLERANCE)


@pytest.mark.parametrize("formats", EXPERT_FORMATS, ids="-".join)
def test_a_prefill_writes_the_pairs_of_the_batch_alone(
    ops: MatrixOps, monkeypatch: pytest.MonkeyPatch, formats: tuple[Format, Format, Format]
) -> None:
    monkeypatch.setattr(grouping, "TILE_ROWS", 16)
    experts, tokens = Experts(formats, 3), 34
    ids = np.array([[0, 2] if token < 20 else [1, 0] for token in range(tokens)])
    x, act = random(tokens, HIDDEN), random(2 * tokens, INTERMEDIATE)
    found_act, found = torch.full((68, INTERMEDIATE), UNTOUCHED), torch.full((68, HIDDEN), UNTOUCHED)
    groups = make_groups(ids, np.array([2, 0]), experts.addresses[[2, 0]], CPU)
    ops.gate_up_grouped(x, groups, experts.parts, found_act)
    ops.down_grouped(act, groups, experts.parts, found)
    here = torch.from_numpy(ids.reshape(-1) != 1)
    assert (found_act[~here] == UNTOUCHED).all() and (found[~here] == UNTOUCHED).all()
    wanted_act, act_sizes, wanted, sizes = experts.outputs(x, act, ids.reshape(-1).tolist())
    gate, up, down = (DECODE_TOLERANCE if format in PLAIN_DTYPES else BF16_BIT for format in formats)
    assert_close(found_act[here], wanted_act[here], act_sizes[here], max(gate, up))
    assert_close(found[here], wanted[here], sizes[here], down)


@pytest.mark.parametrize(
    ("form", "bias", "format"),
    # what a form computes does not depend on how weights are widened: one format is enough for each
    [(form, bias, ("mxfp4", "f32")[number % 2]) for number, (form, bias) in enumerate(EXPERT_FORMS)],
    ids=lambda value: getattr(value, "activation", value),
)
def test_experts_of_every_form_are_computed_for_few_and_for_many_tokens(
    ops: MatrixOps, monkeypatch: pytest.MonkeyPatch, format: Format, form: ExpertForm, bias: Format
) -> None:
    monkeypatch.setattr(grouping, "TILE_ROWS", 16)
    experts, ids = Experts((format, format, format), 2, form, bias), np.array([[0, 1], [1, 0]])
    addresses = experts.addresses[ids.reshape(-1)]
    x, act = random(2, HIDDEN), random(4, INTERMEDIATE)
    wanted_act, act_sizes, wanted, sizes = experts.outputs(x, act, ids.reshape(-1).tolist())
    groups = make_groups(ids, np.arange(2), experts.addresses, CPU)
    for grouped in (False, True):
        found_act, found = torch.full((4, INTERMEDIATE), UNTOUCHED), torch.full((4, HIDDEN), UNTOUCHED)
        if grouped:
            ops.gate_up_grouped(x, groups, experts.parts, found_act)
            ops.down_grouped(act, groups, experts.parts, found)
        else:
            ops.gate_up(x, torch.from_numpy(addresses), experts.parts, found_act)
            ops.down(act, torch.from_numpy(addresses), experts.parts, found)
        tolerance = BF16_BIT if grouped and format not in PLAIN_DTYPES else DECODE_TOLERANCE
        assert_close(found_act, wanted_act, act_sizes, tolerance)
        assert_close(found, wanted, sizes, tolerance)


def test_parts_that_a_form_does_not_have_are_refused() -> None:
    layout = ExpertLayout((TensorSpec("up", "f32", (2, 2), 0, 16), TensorSpec("down", "f32", (2, 2), 64, 16)), 80, 4096)
    assert expert_parts_of(layout, ExpertForm("relu", gated=False)).gate is None
    with pytest.raises(AssertionError, match="has not the parts"):
        expert_parts_of(layout, ExpertForm())


def test_a_place_has_the_same_bits_in_whatever_batch_it_comes(kernels: MatrixOps) -> None:
    experts, tokens = Experts(("q4_0", "q8_0", "bf16"), 3), 20
    ids = np.array([[token % 3, (token + 1) % 3] for token in range(tokens)])
    x = random(tokens, HIDDEN)
    together, apart = torch.empty(40, INTERMEDIATE), torch.empty(40, INTERMEDIATE)
    kernels.gate_up_grouped(x, make_groups(ids, np.arange(3), experts.addresses, CPU), experts.parts, together)
    for batch in ([1], [2, 0]):
        groups = make_groups(ids, np.array(batch), experts.addresses[batch], CPU)
        kernels.gate_up_grouped(x, groups, experts.parts, apart)
    assert torch.equal(together, apart)


# ---- groups and tiles


def pairs_of(groups: Groups) -> dict[int, list[list[int]]]:
    """Address -> the pairs of each of its tiles."""
    found: dict[int, list[list[int]]] = {}
    for start, count, address in zip(
        groups.starts.tolist(), groups.counts.tolist(), groups.addresses.tolist(), strict=True
    ):
        found.setdefault(address, []).append(groups.pairs[start : start + count].tolist())
    return found


def test_groups_hold_each_place_of_their_experts_once_in_tiles_of_one_expert() -> None:
    rng = np.random.default_rng(1)
    ids = np.stack([rng.permutation(7)[:3] for _ in range(300)])
    experts = np.array([6, 1, 4])
    groups = make_groups(ids, experts, 4096 * (experts + 1), CPU)
    assert groups.top_k == 3
    for expert in experts.tolist():
        tiles = pairs_of(groups)[4096 * (expert + 1)]
        assert [pair for tile in tiles for pair in tile] == np.flatnonzero(ids.reshape(-1) == expert).tolist()
        assert [len(tile) for tile in tiles[:-1]] == [groups.tile_rows] * (len(tiles) - 1)
        assert 0 < len(tiles[-1]) <= groups.tile_rows
    assert len(pairs_of(groups)) == 3


@pytest.mark.parametrize("tokens", [1, 3, 70, 200])
def test_groups_lie_on_the_same_borders_whatever_their_number(tokens: int) -> None:
    """Triton compiles a kernel apart for pointers that 16 does not divide."""
    ids = np.stack([np.random.default_rng(tokens).permutation(7)[:3] for _ in range(tokens)])
    groups = make_groups(ids, np.arange(7), 4096 * np.arange(1, 8), CPU)
    first = groups.addresses.data_ptr()
    assert all((part.data_ptr() - first) % 16 == 0 for part in (groups.starts, groups.counts, groups.pairs))


def test_experts_that_nobody_chose_have_no_tiles(ops: MatrixOps) -> None:
    experts = Experts(("bf16", "bf16", "bf16"), 1)
    groups = make_groups(np.array([[0, 3]]), np.array([9, 3]), np.array([4096, 8192]), CPU)
    assert pairs_of(groups) == {8192: [[1]]}
    none = make_groups(np.array([[0, 3]]), np.array([1, 9]), np.array([4096, 8192]), CPU)
    out = torch.full((2, INTERMEDIATE), UNTOUCHED)
    ops.gate_up_grouped(random(1, HIDDEN), none, experts.parts, out)
    ops.down_grouped(out, none, experts.parts, torch.empty(2, HIDDEN))
    assert not len(none.starts) and (out == UNTOUCHED).all()


@pytest.mark.parametrize("format", [format for format in FORMATS if format not in PLAIN_DTYPES])
def test_lanes_may_be_either_dimension(format: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which it is follows from Triton's version."""
    formats = pytest.importorskip("moeinf.gpu.triton_formats", reason="triton is not installed")
    matrix, x, results = DeviceMatrix(random_blocks(format, 6, 256), format, 6, 256), random(2, 256), list[Tensor]()
    for first in (True, False):
        monkeypatch.setattr(formats, "LANES_FIRST", first)
        results.append(torch.empty(2, 6))
        TritonMatrixOps(linear_programs=3).linear(x, matrix, results[-1])
    assert torch.allclose(results[0], results[1], rtol=1e-4, atol=1e-4 * float(results[0].abs().max()))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("rows", "cols", "top_k"), [(768, 2048, 8), (2048, 768, 8), (14336, 4096, 2), (4096, 14336, 2)]
)
def test_programs_of_a_token_fill_a_large_gpu(format: Format, rows: int, cols: int, top_k: int) -> None:
    tile = decode_tile(format, rows, cols, matrix_ops.EXPERT_PROGRAMS)
    assert rows // tile.rows * top_k >= 2 * 132


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("cols", [256, 768, 1408, 2048, 2880, 14336])
def test_hardly_a_lane_is_idle_in_models_rows(format: Format, cols: int) -> None:
    lanes = decode_tile(format, 4096, cols, 1).lanes
    num_lanes = cols // (4 if format == "q8_0" else 8)
    assert -(-num_lanes // lanes) * lanes <= 1.125 * num_lanes
