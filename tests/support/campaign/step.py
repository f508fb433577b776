"""What a step of the campaign is: a kind of trial, repeated for a while with numbers of one seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Done:
    """counts: what was tried how often, each as "group: detail". faults: a line for each. measured: by its name."""

    counts: Counter[str]
    faults: list[str]
    measured: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Turn:
    """What a step is given. number: how many of its kind and seed came before. seconds: it may exceed them by what it
    has begun. folder: of its own, empty at first."""

    rng: random.Random
    number: int
    folder: Path
    seconds: float

    def of(self, names: Sequence[str]) -> str:
        """One after the other, step by step, so that none is left out whatever numbers are drawn."""
        return names[self.number % len(names)]


Step = Callable[[Turn], Done]
