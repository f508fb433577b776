"""Who guesses at the tokens of the answers of an open model, and what was measured of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from moeinf.config.run_options import SpeculationOptions
from moeinf.sampling.cached_tokens import CachedTokens
from moeinf.sampling.speculation.depth import MOST_DRAFTS, Measured, Speculation
from moeinf.sampling.speculation.drafts import DraftCounts, Drafter
from moeinf.sampling.speculation.prompt_lookup import PromptLookup

# What makes the drafter of one answer, whose tokens the network keeps in that cache.
DraftSource = Callable[[CachedTokens], Drafter]


def lookup(sequence: CachedTokens) -> Drafter:
    """A DraftSource that costs nothing, and so comes first."""
    return PromptLookup()


class Drafting:
    """Begins the speculation of each answer."""

    def __init__(
        self, options: SpeculationOptions, sources: Sequence[DraftSource] = (lookup,), most: int = MOST_DRAFTS
    ) -> None:
        """sources: asked in this order. most: guesses that the network's caches have room for in a step."""
        self.always = options.speculate == "always"  # whether what costs more than it gives is tried, too
        self._most, self._sources, self._measured = min(options.draft_max, most), sources, Measured()

    def begin(self, sequence: CachedTokens, counts: DraftCounts) -> Speculation:
        """counts: to be filled while the answer is made."""
        drafters = [source(sequence) for source in self._sources]
        return Speculation(drafters, self._measured, counts, most=self._most, gated=not self.always)
