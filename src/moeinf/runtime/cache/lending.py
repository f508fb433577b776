"""Memory of slots in which long pieces of a prompt are computed."""

from __future__ import annotations

from collections.abc import Callable

from moeinf.runtime.cache.tier import ExpertTier


class Lending:
    """Takes memory from a tier for as long as passes need it. Used from the thread that computes, between visits."""

    def __init__(self, tier: ExpertTier, release: Callable[[], None]) -> None:
        """release() gives the working memory that passes have grown back to the machine."""
        self._tier, self._release = tier, release
        self._all_bytes, self._lent_bytes = tier.num_bytes, 0
        self._least_slots = min(tier.num_slots, tier.sizes.least_slots)  # which a token needs

    def lend(self, num_bytes: int) -> None:
        """The next pass needs so much. What one needs less than the one before stays lent until one needs nothing: the
        pieces of a prompt are nearly alike. May wait for reads.

        Slots that other programs have got meanwhile stay with these.
        """
        tier, more = self._tier, num_bytes - self._lent_bytes
        if 0 < num_bytes <= self._lent_bytes or not more:
            return
        if not num_bytes:
            self._release()
        with tier.lock:
            whole = tier.num_slots == tier.most_slots
            tier.most_slots, self._lent_bytes = self._left(self._all_bytes - num_bytes), num_bytes
            if more > 0:
                tier.shrink(min(tier.num_slots, self._left(tier.num_bytes - more)))
        if whole:
            tier.resize(tier.most_slots)

    def _left(self, num_bytes: int) -> int:
        return max(self._least_slots, self._tier.slots_in(num_bytes))
