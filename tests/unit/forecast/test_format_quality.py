"""What formats have cost where it was measured, and nothing where it was not."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeinf.forecast.format_quality import divergence_of, measured

PAGE = (Path(__file__).parents[3] / "docs" / "formats.md").read_text(encoding="utf-8")


def test_the_figures_are_those_of_the_page_that_says_how_they_were_measured() -> None:
    found = measured()
    assert f"{found.predictions:,} predictions" in PAGE and found.measured_on.rpartition(" ")[2] in PAGE
    for tag, kl in found.kl.items():
        rows = [line for line in PAGE.splitlines() if line.startswith("|") and f"{tag}`" in line.lower()]
        assert any(f"{kl:g} " in line for line in rows), (tag, kl)


@pytest.mark.parametrize("tag", ["iq2_xxs", "awq", "fp8", "keep", ""])
def test_what_was_not_measured_has_no_figure(tag: str) -> None:
    assert divergence_of(tag) is None


def test_formats_of_more_bits_are_nearer_to_the_sixteen_that_are_compared_with() -> None:
    kl = measured().kl
    named = [tag for tag in ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q8_0") if tag in kl]
    values = [kl[tag] for tag in named]
    assert values == sorted(values, reverse=True) and divergence_of("bf16") == 0 < min(kl.values())
