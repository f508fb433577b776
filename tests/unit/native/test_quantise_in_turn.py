"""Columns that are rounded in turn, against a slow twin that tries all numbers a block can hold."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from moeinf._native import dequantise, quantise, quantise_in_turn
from moeinf.types import FORMAT_BLOCKS, Format
from tests.support.blocks import DIMS, EVEN, WRITTEN, every_point

Floats = np.ndarray[Any, np.dtype[np.float32]]
Case = tuple[Floats, Floats, Floats, Floats]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
ROUNDS = 4  # of choosing scales
# The bytes of a block that hold codes: all others say what codes mean.
CODES: dict[Format, tuple[int, int]] = {
    "q8_0": (2, 34), "q4_0": (2, 18), "q4_1": (4, 20), "iq4_nl": (2, 18), "q5_0": (2, 22), "q5_1": (4, 24),
    "q2_k": (16, 80), "q3_k": (0, 96), "q4_k": (16, 144), "q5_k": (16, 176), "q6_k": (0, 192), "iq4_xs": (8, 136),
}  # fmt: skip
FORMATS = [*CODES, *DIMS]


def case(rows: int = 3) -> Case:
    """weights, asked, upper, importance: of 256 columns."""
    rng = np.random.default_rng(8)
    weights, asked = rng.standard_normal((rows, 256)), 0.1 * rng.standard_normal((rows, 256))
    upper = np.triu(0.1 * rng.standard_normal((256, 256)), 1) + np.eye(256)
    importance = np.exp(rng.standard_normal(256))
    return tuple(each.astype(np.float32) for each in (weights, asked, upper, importance))  # type: ignore[return-value]


def in_turn(format: Format, given: Case) -> tuple[Bytes, Floats]:
    weights, asked, upper, importance = given
    count, num_bytes = FORMAT_BLOCKS[format]
    out, errors = np.empty(weights.size // count * num_bytes, np.uint8), np.empty_like(weights)
    quantise_in_turn(format, weights, asked, upper, importance, errors, out)
    return out, errors


def numbers(format: Format, block: Bytes) -> list[Floats]:
    """All that each weight of a block may become, as gguf reads the block with other codes."""
    first, last = CODES[format]
    blocks = np.repeat(block[None], 1756, 0)
    blocks[:, first:last] = np.random.default_rng(1).integers(0, 256, (1756, last - first))
    blocks[:256, first:last] = np.arange(256)[:, None]
    if format == "q8_0":  # -128 is not written: scales have no use for it
        blocks[:, first:last][blocks[:, first:last] == 128] = 0
    found = gguf.dequantize(blocks, GGMLQuantizationType[format.upper()])
    return [np.unique(column) for column in found.T]


def points(format: Format, block: Bytes) -> list[Floats]:
    """All that the weights of each point of a block may become, of both signs."""
    magnitudes, dims = every_point(format, block), DIMS[format]
    signs = np.where(np.arange(1 << dims)[:, None] >> np.arange(dims) & 1, -1, 1).astype(np.float32)
    return [(magnitudes[:, None, k : k + dims] * signs).reshape(-1, dims) for k in range(0, magnitudes.shape[1], dims)]


def in_turn_slowly(
    aims: Floats, weights: Floats, owed: Floats, importance: Floats, choices: Floats
) -> tuple[float, Floats]:
    """Of the points, the one whose weights cost least, each of which aims at what the errors before it ask too."""
    lost = weights - choices
    costs = np.square(aims - choices + lost @ np.triu(owed, 1)) @ importance
    best = costs.argmin()
    return float(costs[best]), choices[best]


def slowly(format: Format, given: Case, row: int) -> Floats:
    """What the weights of a row become."""
    weights, asked, upper, importance = given
    became = np.zeros(256, np.float32)

    def aim(k: int, known: int) -> float:
        """Of column k, by the errors of the first `known` columns."""
        return float(weights[row, k] + asked[row, k] + (weights[row] - became)[:known] @ upper[:known, k])

    def become(first: int, some: list[Floats], parity: int | None) -> float:
        """Points of the columns from `first` on. parity: of the number of negative weights of each."""
        cost = 0.0
        for choices in some:
            of = slice(first, first + choices.shape[1])
            known = np.array([aim(k, first) for k in range(of.start, of.stop)], np.float32)
            if parity is not None:
                choices = choices[np.signbit(choices).sum(axis=1) % 2 == parity]
            taken, became[of] = in_turn_slowly(known, weights[row, of], upper[of, of], importance[of], choices)
            first, cost = of.stop, cost + taken
        return cost

    count, num_bytes = FORMAT_BLOCKS[format]
    for start in range(0, 256, count):
        columns, least, best = range(start, start + count), np.inf, became
        aims = np.array([aim(k, start) for k in columns], np.float32)
        for _ in range(ROUNDS):
            block = np.empty(num_bytes, np.uint8)
            quantise(format, aims.view(np.uint8), "f32", 1, count, block, importance[start : start + count])
            if format in DIMS:
                every, together = points(format, block), 8 // DIMS[format] if format in EVEN else 1
                for at in range(0, len(every), together):
                    some, first = every[at : at + together], start + at * DIMS[format]
                    parities = (None,) if format not in EVEN else (0,) if together == 1 else (0, 1)
                    become(first, some, min(parities, key=lambda parity: become(first, some, parity)))
            else:
                for k, choices in zip(columns, numbers(format, block), strict=True):
                    became[k] = choices[np.abs(choices - aim(k, k)).argmin()]
            aims = np.array([aim(k, k) for k in columns], np.float32)
            cost = float((importance[start : start + count] * np.square(aims - became[start : start + count])).sum())
            if cost >= least:
                break
            least, best = cost, became.copy()
        became = best.copy()
    return became


@pytest.mark.parametrize("format", FORMATS)
def test_each_column_is_rounded_to_what_errors_before_it_ask_of_it(format: Format) -> None:
    given = case()
    out, errors = in_turn(format, given)
    back = np.empty_like(errors)
    dequantise(format, out, 3, 256, back)
    np.testing.assert_allclose(given[0] - back, errors, atol=1e-5)
    for row in range(1 if format in DIMS else len(back)):
        wanted = slowly(format, given, row)
        # A weight that lies half way between two numbers may become either, and what follows goes by it.
        assert np.isclose(back[row], wanted, atol=1e-4).mean() > 0.99


def test_all_formats_that_are_written_have_a_place_for_codes_but_one() -> None:
    assert set(FORMATS) == set(WRITTEN) - {"mxfp4"}
    with pytest.raises(ValueError, match="the codes of mxfp4 are not known"):
        in_turn("mxfp4", case())


@pytest.mark.parametrize("format", FORMATS)
def test_without_anything_to_make_up_for_it_is_plain_rounding(format: Format) -> None:
    weights, asked, _, importance = case()
    out, _ = in_turn(format, (weights, np.zeros_like(asked), np.eye(256, dtype=np.float32), importance))
    plain = np.empty_like(out)
    quantise(format, weights.view(np.uint8).reshape(-1), "f32", 3, 256, plain, importance)
    found, wanted = np.empty_like(weights), np.empty_like(weights)
    dequantise(format, out, 3, 256, found)
    dequantise(format, plain, 3, 256, wanted)
    # Where signs are chosen together, plain rounding does not try all of them.
    alike = np.isclose(found, wanted, atol=1e-4).mean()
    assert alike > (0.9 if format in EVEN else 0.98), "others lie between two numbers"


@pytest.mark.parametrize("format", FORMATS)
def test_a_row_depends_on_nothing_but_itself(format: Format) -> None:
    given = case(5)
    whole, errors = in_turn(format, given)
    for row in range(5):
        alone = tuple(np.ascontiguousarray(each[row : row + 1]) for each in given[:2])
        out, lost = in_turn(format, (*alone, *given[2:]))  # type: ignore[arg-type]
        assert np.array_equal(out, whole.reshape(5, -1)[row]) and np.array_equal(lost[0], errors[row])


@pytest.mark.parametrize("format", FORMATS)
def test_zeros_stay_zeros(format: Format) -> None:
    _, asked, upper, importance = case()
    zeros = np.zeros_like(asked)
    errors = in_turn(format, (zeros, zeros, upper, importance))[1]
    assert not errors.any() and np.isfinite(errors).all()


def test_what_cannot_be_rounded_is_refused() -> None:
    weights, asked, upper, importance = case()
    out, errors = np.empty(3 * 8 * 18, np.uint8), np.empty_like(weights)
    with pytest.raises(ValueError, match="upper"):
        quantise_in_turn("q4_0", weights, asked, upper[:32], importance, errors, out)
    with pytest.raises(ValueError, match="out has 432 bytes, not 480"):
        quantise_in_turn("q4_1", weights, asked, upper, importance, errors, out[:432])
    weights[1, 3] = np.nan
    with pytest.raises(ValueError, match="only finite weights up to 65504 can be quantised"):
        quantise_in_turn("q4_0", weights, asked, upper, importance, errors, out)
    wide = np.ones((1, 512), np.float32)
    with pytest.raises(ValueError, match="more than 256"):
        quantise_in_turn(
            "q4_0", wide, wide, np.ones((512, 512), np.float32), wide[0], wide.copy(), np.empty(288, np.uint8)
        )
