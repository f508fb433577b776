"""Blocks of weights against ggml's own Python reading of them, and the faces of the native functions."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from moeinf._native import check_scales, dequantise, quantise, repack_mxfp4
from moeinf.store.naming.catalogue import DATA
from moeinf.types import FORMAT_BLOCKS, Format
from tests.support.blocks import DIMS, QUANTISED, WRITTEN, Bytes, any_blocks, every_point, halves_of

# gguf's names are those of the formats.
GGML = {format: GGMLQuantizationType[format.upper()] for format in QUANTISED}
# How far a weight may move, as a share of the largest of its block: half a step where values are widest apart; a whole
# one where the range has no value at its other end (mxfp4: 8 becomes 6), one and a half where the search may also end
# before it; where there are lines twice the step of a range of both signs, as scales are rounded too (to float16 all
# are, which q8_0 alone feels). Of eight weights of iq2_s two may be far from zero where no point has that;
# of iq3_xxs, iq2_xs and iq2_xxs one may get the other sign, and may be as large as the others.
LARGEST_MOVE = {
    "q8_0": 0.51 / 127 + 2**-11, "q5_0": 1.6 / 16, "q4_0": 1.6 / 8, "iq4_nl": 0.16, "mxfp4": 0.26,
    "q4_1": 4.2 / 15, "q5_1": 4.2 / 31, "q2_k": 2.2 / 3, "q3_k": 1.6 / 4, "q4_k": 4.2 / 15, "q5_k": 4.2 / 31,
    "q6_k": 1.6 / 32, "iq4_xs": 0.2, "iq3_s": 0.4, "iq2_s": 0.95,
    "iq3_xxs": 1.3, "iq2_xs": 1.3, "iq2_xxs": 1.3,
}  # fmt: skip
# The root of the mean square error, as a part of that of the weights, with which ggml's own functions
# (ggml_quantize_chunk of the llama.cpp in llama-cpp-python 0.3.36, without an importance matrix; iq3_s and iq2 with one
# of ones, by which they are nearer) write 512 super-blocks of random weights, and of the embedding of the model
# that comes with moeinf.
OF_GGML = {
    "q8_0": (0.00533, 0.00525), "q5_0": (0.04255, 0.04197), "q5_1": (0.03772, 0.03732), "q4_0": (0.08564, 0.08317),
    "q4_1": (0.07790, 0.07651), "q4_k": (0.07091, 0.06991), "iq4_nl": (0.07582, 0.07477), "mxfp4": (0.11484, 0.11741),
    "q2_k": (0.29540, 0.28078), "q3_k": (0.15008, 0.14550), "q5_k": (0.03599, 0.03560), "q6_k": (0.01769, 0.01727),
    "iq4_xs": (0.07641, 0.07535), "iq3_s": (0.13648, 0.13767), "iq2_s": (0.24839, 0.24596),
    "iq3_xxs": (0.21342, 0.21227), "iq2_xs": (0.29951, 0.30156), "iq2_xxs": (0.34329, 0.35018),
}  # fmt: skip
# The same with and for an importance matrix, exp(standard_normal) of seed 3.
WEIGHED_OF_GGML = {
    "q3_k": (0.13191, 0.12832), "iq3_s": (0.11806, 0.12059), "q2_k": (0.23179, 0.22743), "iq2_s": (0.22293, 0.21961),
    "iq3_xxs": (0.15107, 0.15130), "iq2_xs": (0.25637, 0.25644), "iq2_xxs": (0.29282, 0.29418),
}  # fmt: skip
Floats = np.ndarray[Any, np.dtype[np.float32]]


def quantised(format: Format, weights: Floats, importance: Floats | None = None) -> Bytes:
    rows, cols = weights.shape
    block_weights, num_bytes = FORMAT_BLOCKS[format]
    out = np.zeros(rows * cols // block_weights * num_bytes, np.uint8)
    quantise(format, weights.view(np.uint8).reshape(-1), "f32", rows, cols, out, importance)
    return out


def dequantised(format: Format, data: Bytes, rows: int, cols: int) -> Floats:
    out = np.empty((rows, cols), np.float32)
    dequantise(format, data, rows, cols, out)
    return out


@pytest.mark.parametrize("format", QUANTISED)
def test_any_block_means_what_it_means_to_ggml(format: Format) -> None:
    """Random bytes, but for scales that are numbers, compared bit for bit."""
    block_weights, _ = FORMAT_BLOCKS[format]
    blocks = any_blocks(format, 500, np.random.default_rng(3))
    wanted = gguf.dequantize(blocks, GGML[format])
    found = dequantised(format, blocks.reshape(-1), 500, block_weights)
    assert np.array_equal(found.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("format", QUANTISED)
def test_the_first_scale_that_is_no_number_is_found_in_any_block(format: Format) -> None:
    blocks = any_blocks(format, 20, np.random.default_rng(4))
    weights = FORMAT_BLOCKS[format][0]
    assert check_scales(format, blocks.reshape(-1), 2, 10 * weights) == -1
    for at in halves_of(format):
        for block, bad in ((7, np.inf), (3, np.nan)):
            blocks[block, at : at + 2] = np.array([bad], np.float16).view(np.uint8)
            assert check_scales(format, blocks.reshape(-1), 2, 10 * weights) == block
        blocks = any_blocks(format, 20, np.random.default_rng(4))
    if format == "iq1_m":
        blocks[9, 49::2] |= np.array([0, 0, 0xC0, 0x70], np.uint8)  # the top nibbles of d, the last one highest
        assert check_scales(format, blocks.reshape(-1), 2, 10 * weights) == 9


@pytest.mark.parametrize("format", [format for format in QUANTISED if format not in WRITTEN])
def test_formats_that_are_only_read_are_not_written(format: Format) -> None:
    weights, num_bytes = FORMAT_BLOCKS[format]
    with pytest.raises(ValueError, match=f"weights are not stored as {format}"):
        quantise(format, np.zeros(4 * weights, np.uint8), "f32", 1, weights, np.zeros(num_bytes, np.uint8))


def test_the_format_that_leaves_no_choice_is_rounded_as_by_ggml() -> None:
    weights = np.random.default_rng(5).standard_normal((64, 256)).astype(np.float32)
    wanted = gguf.quantize(weights, GGML["q8_0"]).reshape(-1)
    assert np.array_equal(quantised("q8_0", weights), wanted)


def errors(format: Format, importance: Floats | None = None) -> list[float]:
    """Of random and of trained weights."""
    drawn = np.random.default_rng(5).standard_normal((512, 256)).astype(np.float32)
    embedding = load_file(DATA / "demo" / "model.safetensors")["model.embed_tokens.weight"].float().numpy()
    found, matters = [], np.ones(256, np.float32) if importance is None else importance
    for weights in (drawn, embedding.reshape(-1, 256)[:512]):
        blocks = quantised(format, weights, importance)
        became = gguf.dequantize(blocks.reshape(512, -1), GGML[format])
        error, energy = ((np.square(each) * matters).sum(dtype=np.float64) for each in (became - weights, weights))
        found.append(float(np.sqrt(error / energy)))
    return found


@pytest.mark.parametrize("format", WRITTEN)
def test_weights_are_as_near_as_those_that_ggml_writes(format: Format) -> None:
    for error, theirs in zip(errors(format), OF_GGML[format], strict=True):
        assert 0.5 * theirs < error < theirs + 0.000_01, (
            "less than half would be weights that were compared with themselves"
        )


@pytest.mark.parametrize("format", WEIGHED_OF_GGML)
def test_weights_are_as_near_as_ggml_s_by_an_importance_matrix(format: Format) -> None:
    importance = np.exp(np.random.default_rng(3).standard_normal(256)).astype(np.float32)
    for error, theirs in zip(errors(format, importance), WEIGHED_OF_GGML[format], strict=True):
        assert 0.5 * theirs < error < theirs


@pytest.mark.parametrize(("grid", "same_size"), [("iq3_s", "q3_k"), ("iq2_s", "q2_k")])
def test_points_of_a_grid_are_nearer_than_lines_in_as_many_bytes(grid: Format, same_size: Format) -> None:
    """By what docs/lab/quantisation.md says of them, less what chance moves on so few weights."""
    assert FORMAT_BLOCKS[grid][1] <= FORMAT_BLOCKS[same_size][1]
    importance = np.exp(np.random.default_rng(3).standard_normal(256)).astype(np.float32)
    for matters, most in ((None, 0.96), (importance, 0.92)):
        for near, line in zip(errors(grid, matters), errors(same_size, matters), strict=True):
            assert near < most * line


@pytest.mark.parametrize("format", DIMS)
def test_each_point_is_the_nearest_of_its_grid(format: Format) -> None:
    """Of blocks that are written, no point can be replaced by a nearer one, whatever the importance."""
    rng = np.random.default_rng(11)
    weights = rng.standard_normal((4, 256)).astype(np.float32)
    importance = np.exp(1.5 * rng.standard_normal(256)).astype(np.float32)
    blocks = quantised(format, weights, importance).reshape(4, -1)
    found = gguf.dequantize(blocks, GGML[format])
    for row, block in enumerate(blocks):
        points = every_point(format, block)
        losses = importance * np.square(weights[row] - np.sign(found[row]) * points)
        least = losses.reshape(len(points), -1, DIMS[format]).sum(axis=2).min(axis=0)
        lost = (importance * np.square(found[row] - weights[row])).reshape(-1, DIMS[format]).sum(axis=1)
        np.testing.assert_allclose(lost, least, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("format", WRITTEN)
def test_weights_that_a_block_can_hold_are_held(format: Format) -> None:
    """Zeros, and one weight among zeros: no scale of 0 makes a number of nothing."""
    cols = FORMAT_BLOCKS[format][0]
    zeros = np.zeros((4, cols), np.float32)
    assert not dequantised(format, quantised(format, zeros), 4, cols).any()
    if format.startswith("iq"):  # which have no 0 among the multiples of a scale
        return
    zeros[2, 5] = 0.5
    found = dequantised(format, quantised(format, zeros), 4, cols)
    assert np.count_nonzero(found) == 1 and abs(found[2, 5] - 0.5) < 0.01


@pytest.mark.parametrize("format", WRITTEN)
@given(st.data())
@settings(max_examples=60)
def test_no_weight_moves_further_than_its_block_allows(format: Format, data: st.DataObject) -> None:
    cols = FORMAT_BLOCKS[format][0]
    number = st.floats(-65504, 65504, width=32, allow_subnormal=False)
    scale = data.draw(st.sampled_from([1.0, 2.0**-10, 0.0]))
    few = data.draw(st.lists(number, min_size=1, max_size=9))
    order = data.draw(st.randoms(use_true_random=False))
    weights = np.array([[order.choice(few) * scale for _ in range(cols)]], np.float32)
    moved = np.abs(dequantised(format, quantised(format, weights), 1, cols) - weights).reshape(-1, 32).max(axis=1)
    largest = np.abs(weights).max()  # of q4_k's 8 groups the largest: they share a scale
    assert np.all(moved <= LARGEST_MOVE[format] * largest + 1e-5)


def test_dense_formats_are_read_as_numpy_reads_them() -> None:
    weights = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32)
    assert np.array_equal(dequantised("f32", weights.view(np.uint8).reshape(-1), 3, 5), weights)
    half = weights.astype(np.float16)
    assert np.array_equal(dequantised("f16", half.view(np.uint8).reshape(-1), 3, 5), half.astype(np.float32))
    cut = weights.view(np.uint32) & 0xFFFF0000
    bf16 = (cut >> 16).astype(np.uint16)
    assert np.array_equal(dequantised("bf16", bf16.view(np.uint8).reshape(-1), 3, 5), cut.view(np.float32))


def test_sizes_and_names_that_do_not_fit_are_refused() -> None:
    source, out = np.zeros(64 * 4, np.uint8), np.zeros(68, np.uint8)
    quantise("q8_0", source, "f32", 2, 32, out)
    with pytest.raises(ValueError, match="source has 256 bytes, not 128"):
        quantise("q8_0", source, "bf16", 2, 32, out)
    with pytest.raises(ValueError, match="out has 68 bytes, not 36"):
        quantise("q4_0", source, "f32", 2, 32, out)
    with pytest.raises(ValueError, match="64 rows of 1 are no q8_0 matrix"):
        quantise("q8_0", source, "f32", 64, 1, out)
    with pytest.raises(ValueError, match="unknown format 'q9_1'; known: f32, f16, bf16, q8_0"):
        quantise("q9_1", source, "f32", 2, 32, out)
    with pytest.raises(ValueError, match="data has 68 bytes, not 34"):
        check_scales("q8_0", out, 1, 32)
    with pytest.raises(ValueError, match="shape"):
        dequantise("q8_0", out, 2, 32, np.zeros((4, 16), np.float32))
    with pytest.raises(ValueError, match="16 bytes of blocks and 17 of out"):
        repack_mxfp4(np.zeros(32, np.uint8), np.zeros(2, np.uint8), np.zeros(33, np.uint8))
    with pytest.raises(TypeError):
        quantise("q8_0", source.view(np.float32), "f32", 2, 32, out)


def test_a_weight_that_is_no_number_is_refused_wherever_it_stands() -> None:
    for bad in (np.nan, np.inf, -np.inf, 70000.0):
        weights = np.ones((2, 256), np.float32)
        weights[1, 77] = bad
        with pytest.raises(ValueError, match=r"holds .*only finite weights up to 65504 can be quantised"):
            quantised("q4_k", weights)


@pytest.mark.parametrize("format", WRITTEN)
def test_columns_that_matter_more_are_rounded_nearer(format: Format) -> None:
    """The error, weighed as it was asked to be, of random weights and of trained ones, whose rows are no multiple of
    256 for the formats that take such."""
    rng = np.random.default_rng(3)
    cols = 256 if FORMAT_BLOCKS[format][0] == 256 else 160
    trained = load_file(DATA / "demo" / "model.safetensors")["model.embed_tokens.weight"].float().numpy()
    every = (rng.standard_normal((64, cols)).astype(np.float32), trained.reshape(-1)[: 64 * cols].reshape(64, cols))
    importance = np.exp(1.5 * rng.standard_normal(cols)).astype(np.float32)
    for weights in every:
        plain, weighed = (
            dequantised(format, quantised(format, weights, given), *weights.shape) for given in (None, importance)
        )
        error, before = (float((np.square(each - weights) * importance).sum()) for each in (weighed, plain))
        if format in ("q8_0", "mxfp4"):
            assert np.array_equal(plain, weighed), "there is nothing to search for"
        else:
            assert error < 0.97 * before


@pytest.mark.parametrize("format", WRITTEN)
def test_a_block_depends_on_the_importance_of_its_own_columns(format: Format) -> None:
    """And not on how much all of them matter together, nor on other rows."""
    rng = np.random.default_rng(4)
    weights = rng.standard_normal((3, 512)).astype(np.float32)
    importance = np.exp(rng.standard_normal(512)).astype(np.float32)
    whole = quantised(format, weights, importance).reshape(3, -1)
    for row in range(3):
        assert np.array_equal(quantised(format, weights[row : row + 1], importance), whole[row])
    half = quantised(format, np.ascontiguousarray(weights[:, :256]), importance[:256]).reshape(3, -1)
    assert np.array_equal(half, whole[:, : half.shape[1]])
    assert np.array_equal(quantised(format, weights, 4 * importance).reshape(3, -1), whole)
    assert np.isfinite(dequantised(format, quantised(format, np.zeros_like(weights), importance), 3, 512)).all()


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan, np.inf, 70000.0])
def test_an_importance_that_is_none_is_refused(wrong: float) -> None:
    weights, importance = np.ones((1, 256), np.float32), np.ones(256, np.float32)
    importance[200] = wrong
    with pytest.raises(ValueError, match=r"an importance is .*; it is above 0 and at most 65504"):
        quantised("q4_k", weights, importance)
    with pytest.raises(ValueError, match="255 importances of 256 columns"):
        quantised("q4_k", weights, np.ones(255, np.float32))
