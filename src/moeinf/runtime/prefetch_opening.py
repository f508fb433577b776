"""Does prefetch pay, as far as the first tokens tell? They go with it and without by turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

TURNS: Final = (True, False, False, True)  # of tokens: neither kind always follows the other
TOKENS: Final = 24  # until the verdict
TRIMMED: Final = 8  # the slowest and the fastest of so many are left out, as other programs make single tokens wait


_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class TokenCost:
    """What prefetch did for one token, or would have had to do."""

    stall_s: float  # compute waited for experts
    host_s: float  # the host guessed, chose and submitted
    needed: int  # experts that were read for it: on demand, or ahead and used
    wasted: int  # that were read ahead and not used


class Opening:
    """Compares the two kinds by what single tokens waited and what their prefetches took of the host.

    Times of whole tokens swing by far more than prefetch gains or costs, most of all with how many experts a token
    happens to miss. So a kind is known by the seconds that it waits for each expert that had to be read, and what
    prefetch takes of the host is a stopwatch's. What wasted reads evict shows in no single token: it counts as
    `regret` says. Reads that take memory and cores from computing do not show here either; longer trials find those.
    """

    def __init__(self) -> None:
        self._costs: dict[bool, list[TokenCost]] = {True: [], False: []}

    @property
    def next_kind(self) -> bool | None:
        """Whether the next token goes with prefetch; None: there were enough."""
        seen = sum(map(len, self._costs.values()))
        return TURNS[seen % len(TURNS)] if seen < TOKENS else None

    def count(self, on: bool, cost: TokenCost) -> None:
        """Takes what a token of the kind next_kind has cost."""
        self._costs[on].append(cost)

    def gain_s(self, regret: float) -> float:
        """How many seconds a token prefetch saves. regret: reads that each wasted one causes."""
        tokens = [*self._costs[True], *self._costs[False]]
        with_it, without = (_stall_of_a_read(self._costs[on]) for on in (True, False))
        needed = sum(token.needed for token in tokens) / len(tokens)
        wasted = sum(token.wasted for token in self._costs[True]) / len(self._costs[True])
        host_s = trimmed_mean([token.host_s for token in self._costs[True]])
        return needed * (without - with_it) - wasted * regret * without - host_s


def _stall_of_a_read(costs: list[TokenCost]) -> float:
    costs = _trimmed(sorted(costs, key=lambda cost: cost.stall_s / max(1, cost.needed)))
    return sum(cost.stall_s for cost in costs) / max(1, sum(cost.needed for cost in costs))


def trimmed_mean(values: list[float]) -> float:
    """The mean without the smallest and the largest of each TRIMMED values."""
    kept = _trimmed(sorted(values))
    return sum(kept) / len(kept)


def _trimmed(ascending: list[_Value]) -> list[_Value]:
    left_out = len(ascending) // TRIMMED
    return ascending[left_out : len(ascending) - left_out]
