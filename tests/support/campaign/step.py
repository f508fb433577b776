"""What a step of the campaign is: a kind of trial, repeated for a while with numbers of one seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Done:
    """counts: what was tried how often, each as "group: detail". faults: a line for each. measured: by its name."""

    counts: Counter[str]
    faults: list[str]
    measured: dict[str, Any] = field(default_factory=dict)


# A step has a source of random numbers, a folder of its own that is empty at first, and so many seconds, which it may
# exceed by what it has begun.
Step = Callable[[random.Random, Path, float], Done]
