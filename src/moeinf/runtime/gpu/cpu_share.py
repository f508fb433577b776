"""How many of a layer's missing experts the CPU computes while the others are copied to the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

WARM_UP: Final = 16  # visits that only copy: the rate to beat
PROBE_EVERY: Final = 64  # visits; doubled after each probe that says that copying alone is faster
LONGEST_PAUSE: Final = 4096  # visits between two probes
TRIALS: Final = 8  # visits with the CPU's help before it is judged
AT_LEAST: Final = 0.1  # of the time of copying alone: what help has to promise
SMOOTHING: Final = 0.2


class CpuShare:
    """Splits by measured rates, so that the slower of CPU and link is done soonest.

    A visit is `copied`, `share`, and `computed` if the CPU had a share. Copying is measured apart with and without the
    CPU at work, as both read the same memory. Now and then a visit goes the other way than the rates say: one expert
    for the CPU, or none, so that they stay true. Where visits with help took longer than copying alone would have,
    help ends for good.
    """

    def __init__(self, notice: Callable[[str], None] = lambda line: None, *, enabled: bool = True) -> None:
        """notice is told, once, that help has ended. enabled False: the CPU never gets a share."""
        self.enabled = enabled
        self._notice = notice
        self._cpu_s = 0.0  # an expert; 0 as long as nothing was measured
        self._alone_s = 0.0  # a copy, with the CPU idle
        self._beside_s = 0.0  # a copy, with the CPU at work
        self._gain = 0.0  # smoothed share of the time of copying alone that help has saved
        self._trials = 0
        self._visits = 0  # since the last probe
        self._pause = PROBE_EVERY
        self._copied: tuple[float, float] = (0.0, 0.0)  # experts and seconds, as last told
        self._missing, self._taken, self._took_s = 0, 0, 0.0  # of the visit that was last split

    def copied(self, num_experts: float, seconds: float) -> None:
        """What the link has copied since the start, and how long it was busy with it: before each `share`.

        What has come since then is taken as the last visit's.
        """
        count, busy_s = num_experts - self._copied[0], seconds - self._copied[1]
        self._copied = num_experts, seconds
        if count > 0 and busy_s > 0:
            if self._taken:
                self._beside_s = _smooth(self._beside_s, busy_s / count)
            else:
                self._alone_s = _smooth(self._alone_s, busy_s / count)
        if self._taken and self._took_s:
            self._judge(busy_s / count if count > 0 else 0.0)
        self._missing = self._taken = 0

    def share(self, num_missing: int) -> int:
        """How many of a visit's missing experts go to the CPU."""
        self._missing, self._taken, self._took_s = num_missing, 0, 0.0
        if not self.enabled or num_missing == 0 or not self._alone_s:
            return 0
        self._visits += 1
        best = self._best(num_missing)
        if self._visits >= self._pause or (not self._cpu_s and self._visits >= WARM_UP):
            if best:  # copy alone, for once
                self._visits, self._pause = 0, PROBE_EVERY
                return 0
            if num_missing > 1:  # beside a copy, a slow CPU costs little
                self._visits, self._pause = 0, min(2 * self._pause, LONGEST_PAUSE) if self._cpu_s else PROBE_EVERY
                best = 1
        self._taken = best
        return best

    def computed(self, num_experts: int, seconds: float) -> None:
        """How long the CPU took for its share, with all that it costs to bring the result to the device."""
        self._took_s = seconds
        self._cpu_s = _smooth(self._cpu_s, seconds / num_experts)

    def _best(self, num_missing: int) -> int:
        """The share by which the slower of both ends soonest; 0 where that promises too little."""
        if not self._cpu_s:
            return 0
        copy_s = max(self._alone_s, self._beside_s)
        took_s = [max(count * self._cpu_s, (num_missing - count) * copy_s) for count in range(1, num_missing + 1)]
        best = min(took_s)
        return took_s.index(best) + 1 if best <= (1 - AT_LEAST) * num_missing * self._alone_s else 0

    def _judge(self, copy_s: float) -> None:
        alone_s = self._missing * self._alone_s
        took_s = max(self._took_s, (self._missing - self._taken) * copy_s)
        gain = max(-1.0, (alone_s - took_s) / alone_s)  # so that one visit that was held up decides nothing
        self._trials += 1
        self._gain += max(SMOOTHING / 2, 1 / self._trials) * (gain - self._gain)
        if self._trials >= TRIALS and self._gain < 0:
            self.enabled = False
            self._notice(
                f"the CPU no longer computes experts that miss on the GPU: with its help they took "
                f"{-self._gain:.0%} longer than copying all of them"
            )


def _smooth(value: float, measured: float) -> float:
    """A measurement counts as at most twice the value: a visit that was held up says little."""
    return value + SMOOTHING * (min(measured, 2 * value) - value) if value else measured
