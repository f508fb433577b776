"""How hard a model is told to think, in the words that its chat template knows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

SCALE: Final = ("minimal", "low", "medium", "high", "xhigh", "max")
_WRITTEN: Final = {"thinking_effort": ("low", "high", "max")}  # Kimi K3; its template compares none
_USUAL: Final = ("low", "medium", "high")  # gpt-oss


@dataclass(frozen=True, slots=True)
class EffortLevels:
    """Words of a template. told: those that it asks for by name. otherwise: those that it takes in place of others."""

    told: Collection[str] = ()
    otherwise: Collection[str] = ()

    def nearest(self, level: str, variable: str) -> str:
        """The level as `variable` tells it: where there is none of its name, the next harder, else the hardest.

        Words that no template compares go by their own effect, below the first that it knows.
        """
        known = {*self.told, *self.otherwise} if self.told else _WRITTEN.get(variable, _USUAL)
        ordered = [word for word in SCALE if word in known]
        if not ordered or level in ordered:
            return level
        harder = [word for word in ordered if SCALE.index(word) > SCALE.index(level)]
        if len(harder) == len(ordered) and self.told and not self.otherwise:
            return level
        return harder[0] if harder else ordered[-1]


NO_LEVELS: Final = EffortLevels()
