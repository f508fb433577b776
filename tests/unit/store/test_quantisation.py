"""Which format a matrix gets, and how the choice is named."""

from __future__ import annotations

import pytest

from moeinf.errors import UsageError
from moeinf.store.quantisation import CHOICES, KEEP, FormatPlan, Quantisation, bits_of, chosen
from moeinf.types import FORMAT_BLOCKS, Format


@pytest.mark.parametrize(
    ("given", "wanted", "tag"),
    [
        (("q4_k", None, None), Quantisation("q4_k_m", "more"), "q4_k"),
        (("q6_k", None, None), Quantisation("q6_k", "more"), "q6_k"),
        (("q4_k", None, "q8_0"), Quantisation("q4_k_m", "q8_0"), "q4_k_m-q8_0"),
        (("q6_k", "q4_k", None), Quantisation("q4_k", "more"), "q4_k-more"),
        (("q8_0", None, None), Quantisation("q8_0", "q8_0"), "q8_0"),
        (("q8_0", "q4_k", None), Quantisation("q4_k", "q8_0"), "q4_k-q8_0"),
        ((None, "q4_k", "q4_k"), Quantisation("q4_k", "q4_k"), "q4_k-q4_k"),
        ((None, "mxfp4", None), Quantisation("mxfp4", "keep"), "mxfp4-keep"),
        (("q8_0", "keep", None), Quantisation("keep", "q8_0"), "keep-q8_0"),
        (("keep", None, None), KEEP, "keep"),
    ],
)
def test_one_choice_for_all_or_one_each(given: tuple[str | None, ...], wanted: Quantisation, tag: str) -> None:
    quantisation = chosen(*given)
    assert quantisation == wanted and quantisation.tag == tag


def test_nothing_chosen_is_told_apart_from_keep() -> None:
    assert chosen(None) is None


@pytest.mark.parametrize(
    ("given", "option"),
    [(("q7_k",), "--quant"), ((None, "Q8_0"), "--quant-experts"), (("q8_0", None, "bf16"), "--quant-dense")],
)
def test_an_unknown_format_is_refused_with_the_known_ones(given: tuple[str | None, ...], option: str) -> None:
    with pytest.raises(UsageError, match=f"unknown {option} '.*'; known: keep, q8_0, q6_k, .*, mxfp4"):
        chosen(*given)


def test_states_of_a_source_differ_by_what_is_made_of_them() -> None:
    assert KEEP.of("state") == "state"
    assert (
        len(
            {
                Quantisation(*formats).of("state")
                for formats in (("keep", "keep"), ("q8_0", "keep"), ("keep", "q8_0"), ("q8_0", "q8_0"))
            }
        )
        == 4
    )


@pytest.mark.parametrize("wanted", [format for format in FORMAT_BLOCKS if FORMAT_BLOCKS[format][0] == 256])
def test_where_rows_are_no_whole_blocks_there_are_more_bits_and_never_fewer(wanted: Format) -> None:
    if wanted not in CHOICES:
        pytest.skip("only read")
    plan = FormatPlan()
    for kind in ("expert", "dense"):
        found = plan.fit(kind, f"{kind} a", wanted, 1408, "bf16")
        assert bits_of(wanted) < bits_of(found) < 16
        assert any(f"stored as {found}, {bits_of(found):g} bits a weight" in line for line in plan.fallbacks)


def test_rows_decide_what_a_wanted_format_becomes() -> None:
    plan = FormatPlan()
    assert plan.fit("dense", "a", "q4_k", 512, "bf16") == "q4_k"
    assert plan.fit("dense", "b", "keep", 31, "f16") == "f16"
    assert not plan.fallbacks
    assert plan.fit("dense", "c", "q4_k", 288, "bf16") == "q8_0"
    assert plan.fit("dense", "d", "q4_k", 48, "f32") == "f32"
    for name in "efgh":
        assert plan.fit("dense", name, "mxfp4", 40, "bf16") == "bf16"
    costs = "bits a weight instead of"
    assert plan.fallbacks == (
        f"c: rows of 288 are no whole number of q4_k blocks (256); stored as q8_0, 8.5 {costs} 4.5",
        f"d: rows of 48 are no whole number of q4_k blocks (256); stored as f32, 32 {costs} 4.5",
        f"4 dense tensors: rows of 40 are no whole number of mxfp4 blocks (32); stored as bf16, 16 {costs} 4.25",
    )
