"""The names of the tensors of published checkpoints, kept in patterns: `published/*/tensors.txt`.

A line is a pattern of names: braces hold numbers, ranges of them or words, of which each is taken by turns. Behind it
stands the type of numbers where that is not BF16. `total_size` is what the checkpoint's index says: the bytes of all
tensors. An index has no shapes. `quantization_config` is what a quantised checkpoint's config.json says besides, and
`config` names the checkpoint whose config.json it is otherwise.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.true_configs import PUBLISHED

FILE = "tensors.txt"
LISTED = tuple(sorted(path.parent.name for path in PUBLISHED.glob(f"*/{FILE}")))


@dataclass(frozen=True, slots=True)
class Listing:
    """Of one checkpoint."""

    dtypes: Mapping[str, str]  # by the name of the tensor, as files spell them
    total_size: int
    config: Mapping[str, Any]  # the checkpoint's config.json


def listing(name: str) -> Listing:
    dtypes: dict[str, str] = {}
    total, of, quantised = 0, name, dict[str, Any]()
    for line in (PUBLISHED / name / FILE).read_text(encoding="utf-8").splitlines():
        pattern, _, rest = line.partition(" ")
        if pattern == "total_size":
            total = int(rest)
            continue
        if pattern == "config":
            of = rest
            continue
        if pattern == "quantization_config":
            quantised[pattern] = json.loads(rest)
            continue
        for tensor in expanded(pattern):
            assert tensor not in dtypes, f"{name}: {tensor} is listed twice"
            dtypes[tensor] = rest or "BF16"
    config = json.loads((PUBLISHED / of / "config.json").read_text(encoding="utf-8"))
    return Listing(dtypes, total, config | quantised)


def expanded(pattern: str) -> list[str]:
    """The names that a pattern stands for."""
    pieces = re.split(r"\{(.*?)\}", pattern)
    choices = [_choices(piece) if number % 2 else [piece] for number, piece in enumerate(pieces)]
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _choices(text: str) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        ends = re.fullmatch(r"(\d+)-(\d+)", part)
        found += map(str, range(int(ends[1]), int(ends[2]) + 1)) if ends else [part]
    return found
