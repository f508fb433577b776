"""How long an answer a checkpoint asks for, whatever its generation_config.json holds."""

from __future__ import annotations

import math
from typing import Any

import pytest

from moeinf.engine.answers.decoder_only import DecoderOnly


class Asking:
    """A tokenizer, as far as it is asked for the checkpoint's generation_config."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.generation_config = asked


def longest(asked: dict[str, Any]) -> int:
    kind = DecoderOnly(Asking(asked), lambda note: None)  # type: ignore[arg-type]
    return kind.longest_answer([1, 2, 3])


def test_max_new_tokens_goes_before_max_length_which_counts_the_prompt() -> None:
    assert longest({"max_new_tokens": 7, "max_length": 5}) == 7
    assert longest({"max_length": 5}) == 2
    assert longest({"max_length": 3}) == longest({}) == -1


@pytest.mark.parametrize("value", [None, "many", True, [5], math.inf, -math.inf, math.nan, -5])
@pytest.mark.parametrize("name", ["max_new_tokens", "max_length"])
def test_what_is_no_such_number_bounds_nothing(name: str, value: object) -> None:
    assert longest({name: value}) < 0


def test_a_number_beyond_every_context_is_one() -> None:
    assert longest({"max_length": 10**400}) == 10**400 - 3
