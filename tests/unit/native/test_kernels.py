"""The native kernels against their twins, and against themselves however the work is split."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import pytest

from moeinf import _native
from moeinf.models.cpu.math import NumpyMath
from moeinf.models.layers.array_math import function_of
from moeinf.types import FORMAT_BLOCKS, Activation, ByteArray, ExpertForm, Float32Array, Format, IntArray, format_bytes
from tests.oracles.kernels import ExpertPart, ReferenceExpertKernel, reference_linear
from tests.support.blocks import WRITTEN, even_blocks

FORMATS: tuple[Format, ...] = tuple(FORMAT_BLOCKS)
# Largest difference between results and those of unrounded activations, relative to the largest result.
TOLERANCE = {"f32": 1e-5, "f16": 1e-5, "bf16": 0.01}
QUANTISED_TOLERANCE = 0.02
HIDDEN, INTERMEDIATE, NUM_EXPERTS, TOP_K = 512, 256, 6, 3


def stored(format: Format, rows: int, cols: int, rng: np.random.Generator) -> ByteArray:
    values = (rng.standard_normal((rows, cols)) / np.sqrt(cols)).astype(np.float32)
    out = np.empty(format_bytes(format, (rows, cols)), np.uint8)
    if format == "f32":
        out.view(np.float32)[:] = values.ravel()
    elif format == "f16":
        out.view(np.float16)[:] = values.ravel()
    elif format == "bf16":
        out.view(np.uint16)[:] = values.ravel().view(np.uint32) >> 16
    elif format not in WRITTEN:
        out[:] = even_blocks(format, rows * cols // FORMAT_BLOCKS[format][0], rng).ravel()
    else:
        _native.quantise(format, values.ravel().view(np.uint8), "f32", rows, cols, out)
    return out


def assert_near(found: Float32Array, expected: Float32Array, format: Format, largest: float = 0.0) -> None:
    """largest: of more results than these, where they are so few that all of them may be small."""
    allowed = TOLERANCE.get(format, QUANTISED_TOLERANCE) * max(largest, np.abs(expected).max())
    assert np.abs(found - expected).max() <= allowed


class Layer:
    """The blocks of a few experts in one memory, not in the order of their ids."""

    def __init__(
        self, formats: Sequence[Format], seed: int = 0, form: ExpertForm | None = None, bias_format: Format = "f32"
    ) -> None:
        shapes = ((INTERMEDIATE, HIDDEN), (INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE))
        rng = np.random.default_rng(seed)
        self.form = form = form or ExpertForm()
        self.parts: dict[str, tuple[Format, int, int, int]] = {}
        block_bytes = 0
        for name, format, (rows, cols) in zip(("gate", "up", "down"), formats, shapes, strict=True):
            if name == "gate" and not form.gated:
                continue
            self.parts[name] = (format, rows, cols, block_bytes)
            block_bytes += format_bytes(format, (rows, cols))
            if form.biased:
                self.parts[f"{name}_bias"] = (bias_format, rows, 1, block_bytes)
                block_bytes += format_bytes(bias_format, (rows, 1))
        self.offsets = rng.permutation(NUM_EXPERTS) * block_bytes
        self.memory = np.empty(NUM_EXPERTS * block_bytes, np.uint8)
        for offset in self.offsets.tolist():
            for format, rows, cols, at in self.parts.values():
                data = stored(format, rows, cols, rng)
                self.memory[offset + at : offset + at + len(data)] = data

    def kernel(self, kernels: _native.Kernels) -> _native.ExpertKernel:
        return _native.ExpertKernel(kernels, self.memory, self.parts, self.form)

    def twin(self) -> ReferenceExpertKernel:
        return ReferenceExpertKernel(self.memory, self.parts, self.form)


@functools.cache  # quantising is most of the time of these tests
def layer_of(gate: Format, up: Format, down: Format) -> Layer:
    return Layer((gate, up, down))


class Step:
    """What one layer is given for some tokens."""

    def __init__(self, num_tokens: int, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        self.hidden = rng.standard_normal((num_tokens, HIDDEN)).astype(np.float32)
        self.ids: IntArray = np.stack([rng.permutation(NUM_EXPERTS)[:TOP_K] for _ in range(num_tokens)])
        self.weights = rng.random((num_tokens, TOP_K)).astype(np.float32)

    def run(
        self,
        kernel: _native.ExpertKernel | ReferenceExpertKernel,
        layer: Layer,
        split: Sequence[Sequence[int]] | None = None,
        number: int = 0,
    ) -> Float32Array:
        """split: positions among the experts routed to, for each call of compute; None: all in one.

        number: of the layer, where each has its own parts or form.
        """
        experts, _ = kernel.begin(self.hidden, self.ids, self.weights, number)
        for positions in split or [range(len(experts))]:
            chosen = experts[list(positions)]
            kernel.compute(chosen, layer.offsets[chosen])
        out = np.zeros_like(self.hidden)
        kernel.finish(out)
        return out


@pytest.fixture(scope="module", params=_native.available_isas())
def kernels(request: pytest.FixtureRequest) -> _native.Kernels:
    return _native.Kernels(2, request.param)


@pytest.mark.parametrize("format", FORMATS)
def test_a_linear_equals_its_twin(kernels: _native.Kernels, format: Format) -> None:
    rng = np.random.default_rng(3)
    for rows, cols in ((256, 512), (33, 256), (1, 768)):
        memory = stored(format, rows, cols, rng)
        matrix = _native.Matrix(memory, format, rows, cols)
        inputs = rng.standard_normal((40, cols)).astype(np.float32)
        expected = reference_linear(inputs, memory, format, rows, cols)
        for num_x in (1, 2, 3, 8, 9, 40):
            y = np.full((num_x, rows), np.nan, np.float32)
            kernels.linear(inputs[:num_x], matrix, y)
            assert_near(y, expected[:num_x], format, np.abs(expected).max())


@pytest.mark.parametrize("activation", [None, "silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2"])
def test_a_bias_and_a_function_finish_a_product(kernels: _native.Kernels, activation: Activation | None) -> None:
    rng = np.random.default_rng(3)
    matrix = _native.Matrix(stored("bf16", 300, 96, rng), "bf16", 300, 96)
    inputs, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((70, 96), (300,)))
    function = (lambda x: x) if activation is None else function_of(NumpyMath(), activation)
    for num_x in (1, 9, 70):
        plain, biased, found = (np.empty((num_x, 300), np.float32) for _ in range(3))
        kernels.linear(inputs[:num_x], matrix, plain)
        kernels.linear(inputs[:num_x], matrix, biased, bias)
        kernels.linear(inputs[:num_x], matrix, found, bias, activation)
        assert np.array_equal(biased, plain + bias)
        assert np.abs(found - function(biased)).max() < 1e-5 * np.abs(biased).max() ** 2
        kernels.linear(inputs[:num_x], matrix, found, activation=activation)
        assert np.abs(found - function(plain)).max() < 1e-5 * np.abs(plain).max() ** 2


@pytest.mark.parametrize("format", ["nvfp4", "bf16"])
def test_a_scale_multiplies_what_comes_out(kernels: _native.Kernels, format: Format) -> None:
    rng, scale = np.random.default_rng(3), np.float32(0.37)
    memory = stored(format, 40, 512, rng)
    plain, scaled = _native.Matrix(memory, format, 40, 512), _native.Matrix(memory, format, 40, 512, float(scale))
    inputs = rng.standard_normal((70, 512)).astype(np.float32)
    for num_x in (1, 8, 9, 70):
        ys = [np.empty((num_x, 40), np.float32) for _ in range(2)]
        for matrix, y in zip((plain, scaled), ys, strict=True):
            kernels.linear(inputs[:num_x], matrix, y)
        assert np.array_equal(ys[1], ys[0] * scale)


@pytest.mark.parametrize("num_tokens", [1, 40])
def test_each_expert_of_a_part_may_have_a_scale(kernels: _native.Kernels, num_tokens: int) -> None:
    layer, step = layer_of("nvfp4", "q8_0", "nvfp4"), Step(num_tokens)
    scales = np.random.default_rng(4).uniform(0.5, 2, (2, NUM_EXPERTS)).tolist()
    parts: dict[str, ExpertPart] = {**layer.parts}
    for name, each in zip(("gate", "down"), scales, strict=True):
        parts[name] = (*layer.parts[name], 0, 0, each)
    found = step.run(_native.ExpertKernel(kernels, layer.memory, parts), layer)
    expected = step.run(ReferenceExpertKernel(layer.memory, parts), layer)
    assert_near(found, expected, "nvfp4")
    assert np.abs(expected - step.run(layer.twin(), layer)).max() > 0.1 * np.abs(expected).max()
    parts["down"] = (*layer.parts["down"], 0, 0, scales[1][:1])
    with pytest.raises(ValueError, match="has no scale"):
        step.run(_native.ExpertKernel(kernels, layer.memory, parts), layer)


@pytest.mark.parametrize("num_tokens", [1, 2, 40])
def test_outputs_that_come_from_elsewhere_are_summed_as_if_computed_here(
    kernels: _native.Kernels, num_tokens: int
) -> None:
    layer, step = layer_of("q8_0", "q8_0", "q8_0"), Step(num_tokens)
    kernels.begin_pass(num_tokens)
    for make in (lambda: layer.kernel(kernels), layer.twin):
        here, there = make(), make()
        expected = step.run(make(), layer)
        experts, counts = here.begin(step.hidden, step.ids, step.weights)
        there.begin(step.hidden, step.ids, step.weights)
        theirs = experts[1::2].copy()
        rows = np.empty((counts[1::2].sum(), HIDDEN), np.float32)
        there.compute(theirs, layer.offsets[theirs])
        there.get(theirs[::-1].copy(), rows)
        here.compute(experts[::2].copy(), layer.offsets[experts[::2]])
        here.put(theirs[::-1].copy(), rows)
        found = np.zeros_like(step.hidden)
        here.finish(found)
        assert np.array_equal(found, expected)
    kernels.begin_pass(0)


def test_outputs_that_cannot_be_meant_are_refused(kernels: _native.Kernels) -> None:
    layer, step = layer_of("q8_0", "q8_0", "q8_0"), Step(2)
    for kernel in (layer.kernel(kernels), layer.twin()):
        rows = np.zeros((2 * TOP_K, HIDDEN), np.float32)
        with pytest.raises(ValueError):
            kernel.put(np.array([0]), rows[:1])  # before a begin
        experts, counts = kernel.begin(step.hidden, step.ids, step.weights)
        absent = np.setdiff1d(np.arange(NUM_EXPERTS), experts)[:1]
        for wrong in ((experts[:1].copy(), rows[: counts[0] + 1]), (absent, rows[:1])):
            with pytest.raises(ValueError):
                kernel.put(*wrong)
        with pytest.raises(ValueError):
            kernel.get(experts[:1].copy(), rows[: counts[0]])  # not computed
        kernel.put(experts[:1].copy(), rows[: counts[0]])
        with pytest.raises(ValueError):
            kernel.put(experts[:1].copy(), rows[: counts[0]])
        with pytest.raises(ValueError):
            kernel.compute(experts[:1].copy(), layer.offsets[experts[:1]])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("num_tokens", [1, 2, 8, 40])
def test_experts_equal_their_twin(kernels: _native.Kernels, format: Format, num_tokens: int) -> None:
    layer, step = layer_of(format, format, format), Step(num_tokens)
    found = step.run(layer.kernel(kernels), layer)
    assert_near(found, step.run(layer.twin(), layer), format)


def test_parts_may_have_formats_of_their_own(kernels: _native.Kernels) -> None:
    for layer in (layer_of("q4_k", "bf16", "f32"), layer_of("f16", "f16", "q8_0")):
        for num_tokens in (1, 30):
            step = Step(num_tokens)
            expected = step.run(layer.twin(), layer)
            assert_near(step.run(layer.kernel(kernels), layer), expected, "q4_0")


FORMS = (
    ExpertForm("silu", biased=True),
    ExpertForm("silu", gated=False),
    ExpertForm("gelu"),
    ExpertForm("gelu", gated=False, biased=True),
    ExpertForm("gelu_tanh"),
    ExpertForm("quick_gelu"),
    ExpertForm("silu_clamped", limit=0.5),
    ExpertForm("clamped_silu", limit=0.5),
    ExpertForm("softcapped", limit=0.7, gate_limit=0.4),
    ExpertForm("softcapped", gate_limit=0.4),
    ExpertForm("relu"),
    ExpertForm("relu", gated=False),
    ExpertForm("relu", gated=False, biased=True),
    ExpertForm("relu2", gated=False),
    ExpertForm("swiglu_clamped", limit=0.7),
    ExpertForm("swiglu_clamped", biased=True, limit=1.5),
)


def test_layers_may_have_forms_of_their_own(kernels: _native.Kernels) -> None:
    forms, layer, step = [ExpertForm(), ExpertForm("clamped_silu", limit=0.2)], Layer(("f32", "f32", "f32")), Step(3)
    several = _native.ExpertKernel(kernels, layer.memory, layer.parts, forms)
    for number, form in enumerate(forms):
        alone = _native.ExpertKernel(kernels, layer.memory, layer.parts, form)
        assert np.array_equal(step.run(several, layer, number=number), step.run(alone, layer))
    with pytest.raises(ValueError, match="one form, or one for each layer"):
        _native.ExpertKernel(kernels, layer.memory, [layer.parts] * 3, forms)


@pytest.mark.parametrize("num_tokens", [1, 3, 300])
def test_outputs_of_experts_may_have_a_norm_before_they_are_weighed(kernels: _native.Kernels, num_tokens: int) -> None:
    layer = layer_of("f32", "f32", "f32")
    native, twin, step = layer.kernel(kernels), layer.twin(), Step(num_tokens)
    plain = step.run(native, layer, number=3)
    scale = np.random.default_rng(2).random(HIDDEN).astype(np.float32) + np.float32(0.5)
    for each in (native, twin):
        each.norm_outputs(3, scale, 1e-3)
    found = step.run(native, layer, number=3)
    assert_near(found, step.run(twin, layer, number=3), "f32")
    assert not np.allclose(found, plain) and np.array_equal(step.run(native, layer, number=2), plain)
    one = num_tokens - 1
    alone, last = layer.kernel(kernels), Step(num_tokens)
    alone.norm_outputs(3, scale, 1e-3)
    last.hidden, last.ids, last.weights = (each[one:].copy() for each in (step.hidden, step.ids, step.weights))
    assert_near(last.run(alone, layer, number=3), found[one:], "f32")


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_experts_of_every_form_equal_their_twin(kernels: _native.Kernels, form: ExpertForm) -> None:
    layouts: tuple[tuple[Format, Format, Format, Format], ...] = (
        ("f32", "f32", "f32", "f16"),
        ("mxfp4", "mxfp4", "mxfp4", "bf16"),
        ("bf16", "q8_0", "f16", "f32"),
    )
    for *formats, bias_format in layouts:
        layer = Layer(formats, 2, form, bias_format)
        kernel = layer.kernel(kernels)
        for num_tokens in (1, 3, 40):
            step = Step(num_tokens)
            found = step.run(kernel, layer)
            assert_near(found, step.run(layer.twin(), layer), "f32" if formats[0] == "f32" else "q4_0")
            assert np.array_equal(step.run(kernel, layer, [[i] for i in range(len(np.unique(step.ids)))]), found)


@pytest.mark.parametrize("format", FORMATS)
def test_experts_in_any_number_of_calls_give_the_same_bits(kernels: _native.Kernels, format: Format) -> None:
    layer = layer_of(format, format, format)
    kernel = layer.kernel(kernels)
    for num_tokens in (1, 5, 40):
        step = Step(num_tokens)
        at_once = step.run(kernel, layer)
        count = len(np.unique(step.ids))
        for split in ([[i] for i in reversed(range(count))], [range(1, count), [0], []]):
            assert np.array_equal(step.run(kernel, layer, split), at_once)


@pytest.mark.parametrize("format", FORMATS)
def test_the_number_of_threads_does_not_change_a_bit(format: Format) -> None:
    layer = layer_of(format, format, format)
    memory = stored(format, 200, 512, np.random.default_rng(5))
    outs = []
    for threads in (1, 2, 3):
        kernels = _native.Kernels(threads)
        assert kernels.threads == threads
        for num_tokens in (1, 6, 40):
            step = Step(num_tokens)
            y = np.empty((num_tokens, 200), np.float32)
            kernels.linear(step.hidden, _native.Matrix(memory, format, 200, 512), y)
            outs.append((threads, step.run(layer.kernel(kernels), layer).tobytes() + y.tobytes()))
    for size in range(3):
        assert outs[size][1] == outs[3 + size][1] == outs[6 + size][1]


def test_begin_tells_the_experts_and_how_many_tokens_each_has(kernels: _native.Kernels) -> None:
    layer, step = layer_of("bf16", "bf16", "bf16"), Step(17)
    expected_experts, expected_counts = np.unique(step.ids, return_counts=True)
    for kernel in (layer.kernel(kernels), layer.twin()):
        experts, counts = kernel.begin(step.hidden, step.ids, step.weights)
        assert experts.dtype == counts.dtype == np.int64
        assert experts.tolist() == expected_experts.tolist()
        assert counts.tolist() == expected_counts.tolist()


def test_finish_adds_to_what_out_holds(kernels: _native.Kernels) -> None:
    layer, step = layer_of("f32", "f32", "f32"), Step(2)
    for kernel in (layer.kernel(kernels), layer.twin()):
        sums = step.run(kernel, layer)
        experts, _ = kernel.begin(step.hidden, step.ids, step.weights)
        kernel.compute(experts, layer.offsets[experts])
        out = np.full_like(sums, 3)
        kernel.finish(out)
        np.testing.assert_allclose(out, sums + 3, atol=1e-5)


def test_arrays_given_to_begin_are_free_afterwards(kernels: _native.Kernels) -> None:
    layer, step = layer_of("q8_0", "q8_0", "q8_0"), Step(3)
    kernel = layer.kernel(kernels)
    expected = step.run(kernel, layer)
    experts, _ = kernel.begin(step.hidden, step.ids, step.weights)
    for array in (step.hidden, step.weights, step.ids):
        array.fill(-7)
    kernel.compute(experts, layer.offsets[experts])
    out = np.zeros_like(step.hidden)
    kernel.finish(out)
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("is_native", [True, False])
def test_steps_that_are_not_in_order_are_refused(is_native: bool) -> None:
    layer, step = layer_of("f32", "f32", "f32"), Step(1)
    kernel = layer.kernel(_native.Kernels(1)) if is_native else layer.twin()
    out = np.zeros_like(step.hidden)
    with pytest.raises(ValueError, match="begin"):
        kernel.compute(np.array([0]), np.array([0]))
    with pytest.raises(ValueError, match="begin"):
        kernel.finish(out)
    experts, _ = kernel.begin(step.hidden, step.ids, step.weights)
    unrouted = np.setdiff1d(np.arange(NUM_EXPERTS), experts)[:1]
    with pytest.raises(ValueError, match="routed to"):
        kernel.compute(unrouted, layer.offsets[unrouted])
    kernel.compute(experts[:1], layer.offsets[experts[:1]])
    with pytest.raises(ValueError, match="computed before"):
        kernel.compute(experts[:1], layer.offsets[experts[:1]])
    with pytest.raises(ValueError, match="computed"):
        kernel.finish(out)
    assert not out.any()
    kernel.compute(experts[1:], layer.offsets[experts[1:]])
    kernel.finish(out)
    assert out.any()
    with pytest.raises(ValueError, match="begin"):
        kernel.finish(out)


def test_sizes_that_do_not_fit_are_refused_by_name() -> None:
    kernels = _native.Kernels(1)
    memory = np.zeros(4 * 64, np.uint8)
    with pytest.raises(ValueError, match="256 bytes are not those of 4 x 32 in f32"):
        _native.Matrix(memory, "f32", 4, 32)
    with pytest.raises(ValueError, match="q8_0"):
        _native.Matrix(memory, "q8_0", 4, 16)
    matrix = _native.Matrix(memory, "f32", 4, 16)
    x, y = np.zeros((2, 16), np.float32), np.zeros((2, 4), np.float32)
    with pytest.raises(ValueError, match=r"x is \[2, 15\], not \[2, 16\]"):
        kernels.linear(np.zeros((2, 15), np.float32), matrix, y)
    with pytest.raises(ValueError, match=r"y is \[3, 4\], not \[2, 4\]"):
        kernels.linear(x, matrix, np.zeros((3, 4), np.float32))
    with pytest.raises(TypeError):
        kernels.linear(x.astype(np.float64), matrix, y)
    with pytest.raises(TypeError):
        kernels.linear(np.zeros((16, 2), np.float32).T, matrix, y)
    with pytest.raises(ValueError, match="the bias has another number"):
        kernels.linear(x, matrix, y, np.zeros(5, np.float32))
    with pytest.raises(ValueError, match="the activation has limits"):
        kernels.linear(x, matrix, y, activation="softcapped")


def test_experts_refuse_arrays_and_blocks_that_do_not_fit() -> None:
    layer, step = layer_of("q8_0", "q8_0", "q8_0"), Step(2)
    kernels = _native.Kernels(1)
    with pytest.raises(ValueError, match="down is"):
        _native.ExpertKernel(kernels, layer.memory, {**layer.parts, "down": layer.parts["gate"]})
    with pytest.raises(ValueError, match="lacks the part gate"):
        _native.ExpertKernel(kernels, layer.memory, {name: layer.parts[name] for name in ("up", "down")})
    with pytest.raises(ValueError, match="parts that its form has not"):
        _native.ExpertKernel(kernels, layer.memory, layer.parts, ExpertForm("relu", gated=False))
    with pytest.raises(ValueError, match="limit above 0"):
        _native.ExpertKernel(kernels, layer.memory, layer.parts, ExpertForm("swiglu_clamped"))
    kernel = layer.kernel(kernels)
    with pytest.raises(ValueError, match="hidden is"):
        kernel.begin(step.hidden[:, :32].copy(), step.ids, step.weights)
    with pytest.raises(ValueError, match="weights is"):
        kernel.begin(step.hidden, step.ids, step.weights[:1])
    with pytest.raises(ValueError, match="expert -1"):
        kernel.begin(step.hidden, np.full_like(step.ids, -1), step.weights)
    experts, _ = kernel.begin(step.hidden, step.ids, step.weights)
    for offset in (-1, len(layer.memory)):
        with pytest.raises(ValueError, match="not inside the memory"):
            kernel.compute(experts[:1], np.array([offset]))
    with pytest.raises(ValueError, match="1 experts and 2 offsets"):
        kernel.compute(experts[:1], layer.offsets[:2])
    with pytest.raises(ValueError, match="out is"):
        kernel.finish(np.zeros((1, HIDDEN), np.float32))


def test_formats_instruction_sets_and_thread_counts_that_are_not_there_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"q9_9.*q8_0"):
        _native.Matrix(np.zeros(4, np.uint8), "q9_9", 1, 1)
    with pytest.raises(ValueError, match=r"mmx.*generic"):
        _native.Kernels(1, "mmx")
    with pytest.raises(ValueError, match="thread"):
        _native.Kernels(0)


def test_the_best_instruction_set_is_taken_unless_one_is_named() -> None:
    available = _native.available_isas()
    assert available[-1] == "generic"
    assert _native.Kernels(1).isa == available[0]
    assert [_native.Kernels(1, isa).isa for isa in available] == available


def test_the_rate_of_reading_memory_is_measured() -> None:
    kernels = _native.Kernels(2)
    assert _native.memory_read_rate(kernels, 4 << 20, 2) > 0
    with pytest.raises(ValueError, match="at least"):
        _native.memory_read_rate(kernels, 10, 1)


def test_products_have_rates_unless_nothing_can_be_measured(kernels: _native.Kernels) -> None:
    w = _native.Matrix(np.full(34 * 64, 0x2C, np.uint8), "q8_0", 64, 32)
    rates = _native.product_read_rates(kernels, w, 8, 1 << 20, 3)
    assert len(rates) == 3 and all(np.isfinite(rate) and rate > 0 for pair in rates for rate in pair)
    cached = _native.cached_product_rates(kernels, w, 8, 2)
    assert len(cached) == 2 and all(np.isfinite(rate) and rate > 0 for rate in cached)
    with pytest.raises(ValueError, match="at least 1 MiB, and room for the matrix"):
        _native.product_read_rates(kernels, w, 1, 1000, 1)
    with pytest.raises(ValueError, match="1 to 8 activations"):
        _native.cached_product_rates(kernels, w, 9, 1)


def test_layers_may_differ_in_formats_and_in_where_parts_begin(kernels: _native.Kernels) -> None:
    """As experts come that are read from files of another form, with the rest of their blocks."""
    rng, region = np.random.default_rng(5), 5 << 20
    formats: list[tuple[Format, Format, Format]] = [("q4_k", "q8_0", "f32"), ("bf16", "q4_0", "q4_k")]
    parts = []
    for layer, of_layer in enumerate(formats):
        pairs = zip(of_layer, [(256, 512), (256, 512), (512, 256)], strict=True)
        shapes = dict(zip(("gate", "up", "down"), pairs, strict=True))
        parts.append(
            {
                name: (format, *shape, i * (1 << 20), 4096 * 7 + 32 * (i + layer), format_bytes(format, shape))
                for i, (name, (format, shape)) in enumerate(shapes.items())
            }
        )
    memory = np.zeros(NUM_EXPERTS * region, np.uint8)
    offsets = rng.permutation(NUM_EXPERTS) * region
    for num_tokens in (1, 20):
        step = Step(num_tokens)
        native, twin = _native.ExpertKernel(kernels, memory, parts), ReferenceExpertKernel(memory, parts)
        for layer in (1, 0, 1):
            for expert, offset in enumerate(offsets.tolist()):
                for format, rows, cols, at, start, of_one in parts[layer].values():
                    data = stored(format, rows, cols, rng)
                    begin = offset + at + (start + expert * of_one) % 4096
                    memory[begin : begin + len(data)] = data
            outs = []
            for kernel in (native, twin):
                experts, _ = kernel.begin(step.hidden, step.ids, step.weights, layer)
                kernel.compute(experts, offsets[experts])
                outs.append(np.zeros_like(step.hidden))
                kernel.finish(outs[-1])
            assert_near(outs[0], outs[1], "q4_k")
    with pytest.raises(ValueError, match="no layer 2"):
        native.begin(step.hidden, step.ids, step.weights, 2)


def test_a_watched_matrix_adds_the_squares_of_what_it_is_multiplied_with(kernels: _native.Kernels) -> None:
    rng = np.random.default_rng(5)
    data = stored("bf16", 48, 64, rng)
    watched, other = (_native.Matrix(each, "bf16", 48, 64) for each in (data, data.copy()))
    sums = np.zeros(64, np.float32)
    kernels.watch(watched, sums)
    rows = rng.standard_normal((90, 64)).astype(np.float32)
    for matrix, first, end in ((watched, 0, 30), (other, 30, 60), (watched, 30, 90)):
        kernels.linear(rows[first:end], matrix, np.empty((end - first, 48), np.float32))
    expected = np.zeros(64, np.float32)
    for row in rows:
        expected += row * row
    assert np.array_equal(sums, expected), "the other matrix is not watched, and calls do not matter"


@pytest.mark.parametrize("num_tokens", [1, 7, 90])
def test_watched_experts_add_the_squares_of_what_theirs_are_multiplied_with(
    kernels: _native.Kernels, num_tokens: int
) -> None:
    layer, step = layer_of("f32", "f32", "f32"), Step(num_tokens)
    kernel = layer.kernel(kernels)
    inputs, acts = np.zeros((NUM_EXPERTS, HIDDEN), np.float32), np.zeros((NUM_EXPERTS, INTERMEDIATE), np.float32)
    counts = np.zeros(NUM_EXPERTS, np.int64)
    unwatched = step.run(kernel, layer)
    kernel.watch(0, inputs, acts, counts)
    assert np.array_equal(step.run(kernel, layer), unwatched)
    for expert in range(NUM_EXPERTS):
        given = step.hidden[(step.ids == expert).any(1)]
        block = layer.memory[layer.offsets[expert] :]
        gate, up = (
            block[at : at + 4 * rows * cols].view(np.float32).reshape(rows, cols)
            for _, rows, cols, at in (layer.parts["gate"], layer.parts["up"])
        )
        gated = given @ gate.T
        expected = gated / (1 + np.exp(-gated)) * (given @ up.T)
        assert counts[expert] == len(given)
        np.testing.assert_allclose(inputs[expert], (given * given).sum(0), rtol=1e-5)
        np.testing.assert_allclose(acts[expert], (expected * expected).sum(0), rtol=1e-4, atol=1e-6)


def test_what_is_watched_does_not_depend_on_threads_or_calls() -> None:
    layer, step = layer_of("bf16", "bf16", "bf16"), Step(90)
    found = set()
    for threads, split in ((1, None), (2, None), (5, [[i] for i in reversed(range(NUM_EXPERTS))])):
        kernel = layer.kernel(_native.Kernels(threads))
        inputs, acts = np.zeros((NUM_EXPERTS, HIDDEN), np.float32), np.zeros((NUM_EXPERTS, INTERMEDIATE), np.float32)
        kernel.watch(0, inputs, acts, np.zeros(NUM_EXPERTS, np.int64))
        step.run(kernel, layer, split)
        found.add(inputs.tobytes() + acts.tobytes())
    assert len(found) == 1


def test_sums_that_do_not_fit_are_refused() -> None:
    kernels = _native.Kernels(1)
    kernel = layer_of("bf16", "bf16", "bf16").kernel(kernels)
    inputs, acts = np.zeros((4, HIDDEN), np.float32), np.zeros((4, INTERMEDIATE), np.float32)
    for wrong in ((0, acts, inputs, 4), (-1, inputs, acts, 4), (0, inputs, acts[:3], 4), (0, inputs, acts, 3)):
        layer, first, second, count = wrong
        with pytest.raises(ValueError, match=r"sums of squares|there is no layer|one count"):
            kernel.watch(layer, first, second, np.zeros(count, np.int64))
    kernel.watch(0, inputs, acts, np.zeros(4, np.int64))
    with pytest.raises(ValueError, match="no sums are kept of expert 5"):
        kernel.begin(np.zeros((1, HIDDEN), np.float32), np.array([[5]]), np.ones((1, 1), np.float32))
