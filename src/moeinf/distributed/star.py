"""Rank 0 of a star: which expert is whose, and what becomes of those of a worker that is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from moeinf.distributed.link import LostError
from moeinf.distributed.ownership import Capacity, owners, shares
from moeinf.distributed.peer import Connection, Peer
from moeinf.distributed.replies import Counts, counts_of, no_numbers
from moeinf.errors import WorkerError
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.types import IntArray, MoeShape

HERE: Final = 0  # the rank of whoever serves the user; workers count from 1


class Star:
    """Ranks and what they own. Experts of a lost worker are this machine's, until the worker is there again."""

    def __init__(
        self, peers: Sequence[Peer], here: Capacity, shape: MoeShape, tier: ExpertTier, notify: Callable[[str], None]
    ) -> None:
        """Calls all workers, and shares the experts out. The tier then holds this machine's alone.

        shape: that of the routing.

        Raises WorkerError, which names the worker, where one does not answer or refuses.
        """
        self.shape, self._tier, self._notify = shape, tier, notify
        self.peers = list(peers)
        try:
            offers = [self._opened(peer).offer for peer in self.peers]
            ranks = [here, *(Capacity(offer.num_slots, offer.bytes_per_s) for offer in offers)]
            self._plan = owners(shape.num_keys, shares(shape.total_experts, ranks))
            self._plan[~tier.exists()] = HERE
            self.owner = self._plan.copy()  # now
            self._share_out()
        except BaseException:
            self.close()
            raise

    def _opened(self, peer: Peer) -> Connection:
        try:
            return peer.open()
        except (WorkerError, LostError) as error:
            raise WorkerError(
                f"worker {peer.address}: {error}; start it there with `moeinf worker`, or leave it out of --workers"
            ) from error

    def _share_out(self) -> None:
        for rank, peer in enumerate(self.peers, start=1):
            keys = np.flatnonzero(self._plan == rank)
            peer.num_owned = len(keys)
            try:
                assert peer.connection is not None
                peer.connection.own(keys, self.shape)
            except LostError as error:
                raise WorkerError(f"worker {peer.address}: {error}") from error
        self._settle()

    def _settle(self) -> None:
        """Lets the tier hold what is this machine's now."""
        self._tier.only(self.owner == HERE)
        self.rows = list(self.owner.reshape(self.shape.num_layers, -1))

    @property
    def reads_elsewhere(self) -> bool:
        """Whether a worker owns more experts than its memory holds, and so has to read some of them in time."""
        connections = [(peer.num_owned, peer.connection) for peer in self.peers]
        return any(each is not None and owned > each.offer.num_slots for owned, each in connections)

    def connection(self, rank: int) -> Connection:
        """That of a rank which owns something: it is there."""
        connection = self.peers[rank - 1].connection
        assert connection is not None
        return connection

    def welcome(self) -> None:
        """Gives workers that are here again what was theirs; between two layers."""
        back = [rank for rank, peer in enumerate(self.peers, start=1) if peer.returned()]
        for rank in back:
            self.owner[self._plan == rank] = rank
            self._notify(f"worker {self.peers[rank - 1].address} is here again, and computes its experts")
        if back:
            self._settle()

    def lose(self, rank: int, reason: object) -> None:
        """From now on the experts of this rank are this machine's."""
        peer, keys = self.peers[rank - 1], np.flatnonzero(self._plan == rank)
        self.owner[keys] = HERE
        self._settle()
        peer.drop(keys, self.shape)
        self._notify(
            f"worker {peer.address} is lost ({reason}): its {len(keys)} experts are read here until it is back"
        )

    def owned_here(self) -> IntArray:
        """Keys of the experts that this machine owns now."""
        return np.flatnonzero((self.owner == HERE) & self._tier.exists())

    def describe(self) -> str:
        """Which rank owns how many experts, for the line about memory."""
        parts = [f"rank 0 owns {len(self.owned_here())} experts"]
        parts += [f"{peer.address} {peer.num_owned}" for peer in self.peers]
        return ", ".join(parts)

    def counted(self) -> Counts:
        """What all workers have counted for this rank 0, by their last replies. From any thread.

        Reads take as long as those of the worker that reads most, as all read at once; how long compute waited for an
        expert is for rank 0 to tell.
        """
        each = [peer.counted for peer in self.peers]
        counts = counts_of(sum(each, no_numbers()))
        counts.cache.stall_s = 0.0
        return counts._replace(busy_s=max(float(numbers[-1]) for numbers in each))

    def close(self) -> None:
        for peer in self.peers:
            peer.close()
