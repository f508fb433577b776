"""Who guesses at the tokens of the answers of an open model, and what was measured of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from moeinf.config.run_options import SpeculationOptions
from moeinf.sampling.loop import CachedTokens
from moeinf.sampling.speculation.depth import Measured, Speculation
from moeinf.sampling.speculation.drafts import DraftCounts, Drafter
from moeinf.sampling.speculation.prompt_lookup import PromptLookup

# What makes the drafter of one answer, whose tokens the network keeps in that cache.
DraftSource = Callable[[CachedTokens], Drafter]


def lookup(sequence: CachedTokens) -> Drafter:
    """A DraftSource that costs nothing, and so comes first."""
    return PromptLookup()


class Drafting:
    """Begins the speculation of each answer."""

    def __init__(self, options: SpeculationOptions, sources: Sequence[DraftSource] = (lookup,)) -> None:
        self._options, self._sources, self._measured = options, sources, Measured()

    def begin(self, sequence: CachedTokens, counts: DraftCounts) -> Speculation:
        """counts: to be filled while the answer is made."""
        drafters = [source(sequence) for source in self._sources]
        options = self._options
        return Speculation(
            drafters, self._measured, counts, most=options.draft_max, gated=options.speculate != "always"
        )
