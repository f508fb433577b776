"""How far the answers of a format are from those of 16 bits, as it was measured on one model of real weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

_SAME: Final = ("bf16", "fp16", "f16", "f32")  # what the others are compared with


@dataclass(frozen=True, slots=True)
class FormatQuality:
    """kl: by the tag of a form, the divergence of its predictions from those of the same model in 16 bits, in nats a
    token, over so many predictions of one model (`make quality`, docs/lab/quantisation.md)."""

    measured_on: str
    predictions: int
    kl: Mapping[str, float]


def divergence_of(tag: str) -> float | None:
    """About, for any model: nats a token. None where nothing was measured, and nothing is guessed then."""
    return 0.0 if tag in _SAME else measured().kl.get(tag)


def divergence_text(tag: str) -> str:
    """For a column of a table; "" where nothing was measured."""
    kl = divergence_of(tag)
    return "" if kl is None else f"~{kl:.2g}" if kl else "0"


@cache
def measured() -> FormatQuality:
    text = resources.files("moeinf").joinpath("data/format_divergence.json").read_text(encoding="utf-8")
    return FormatQuality(**json.loads(text))
