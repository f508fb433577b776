"""Which of several forms of a model is the better one, and what the names of files tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from moeinf.config.pull_options import NO_OPTIONS
from moeinf.pull.forms.form import Form, bits_class, preference, quantisation_of
from moeinf.pull.forms.published import told_once
from moeinf.pull.origins import Origin
from moeinf.store.manifest import ModelSource

PARAMS = 30 * 10**9


def form(tag: str, bits: float, download: float) -> Form:
    headers: Any = SimpleNamespace(
        store_bytes=int(bits * PARAMS / 8), manifest=SimpleNamespace(info=SimpleNamespace(num_params=PARAMS))
    )
    return Form(tag, Origin(ModelSource("hub", "org/repo"), tag), NO_OPTIONS, "", int(download), 0, headers)


def test_eight_bits_are_the_best_and_the_smallest_of_these_is_taken() -> None:
    forms = [
        form("bf16", 16, 60e9),
        form("fp8", 16, 30e9),  # stored in 16 bits
        form("q8_0", 8.5, 32e9),
        form("made", 8.5, 60e9),
        form("q4_k_m", 4.9, 18e9),
        form("q6_k", 6.6, 25e9),
    ]
    ranked = [each.tag for each in sorted(forms, key=lambda each: each.rank, reverse=True)]
    assert ranked == ["q8_0", "made", "fp8", "bf16", "q6_k", "q4_k_m"]


@pytest.mark.parametrize(
    ("file", "tag", "bits"),
    [
        ("Qwen3-30B-A3B-Q4_K_M", "q4_k_m", 4),
        ("qwen3-30b-a3b-ud-q4_k_xl", "ud-q4_k_xl", 4),
        ("mixtral-8x7b-instruct-v0.1.Q3_K_L", "q3_k_l", 3),
        ("BF16/GLM-4.5-BF16", "bf16", 16),
        ("gpt-oss-20b-mxfp4", "mxfp4", 4),
        ("x-iq2_xxs", "iq2_xxs", 2),
        ("x-TQ1_0", "tq1_0", 1),
        ("Qwen3-30B-A3B", "", 0),
        ("mmq8", "", 0),
    ],
)
def test_a_file_tells_its_quantisation(file: str, tag: str, bits: int) -> None:
    assert quantisation_of(file) == tag and (not tag or bits_class(tag) == bits)


def test_of_as_many_bits_the_mixtures_that_most_people_take_come_first() -> None:
    tags = ["iq4_xs", "q4_0", "q4_k_s", "ud-q4_k_xl", "q4_k_m", "mxfp4", "iq4_nl"]
    assert sorted(tags, key=preference) == ["q4_k_m", "q4_0", "ud-q4_k_xl", "mxfp4", "q4_k_s", "iq4_nl", "iq4_xs"]


def test_what_is_the_same_of_several_repositories_is_told_once() -> None:
    notes = ["a/B was not found; check it", "c/D was not found; check it", "a/B was not found; check it", "e/F: broken"]
    assert told_once(notes) == ("each of a/B, c/D was not found; check it", "e/F: broken")
