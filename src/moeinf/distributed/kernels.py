"""One layer's experts on several ranks: each computes its own, and rank 0 sums them in the order of the routing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from moeinf._native import Kernels
from moeinf.distributed.frames import Request
from moeinf.distributed.link import LostError
from moeinf.distributed.star import HERE, Star
from moeinf.runtime.cache.table import BoolArray
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.experts import ExpertKernel
from moeinf.types import Float32Array, IntArray, Routing


class RowKernel(ExpertKernel, Protocol):
    """An ExpertKernel that also takes, and tells, the outputs of single experts: the native one, and its slow twin.

    rows: those of experts[0] first, each expert's in the order of the tokens.
    """

    def put(self, experts: IntArray, rows: Float32Array) -> None: ...

    def get(self, experts: IntArray, rows: Float32Array) -> None: ...


class JoiningKernel:
    """moeinf.runtime.experts.ExpertKernel of rank 0: begins a layer on all ranks, and waits for their rows.

    Whoever drives it is told of the experts of this machine alone. Those of a worker that is lost in the middle of a
    layer are read and computed here before the sum.
    """

    def __init__(
        self,
        kernel: RowKernel,
        kernels: Kernels,
        star: Star,
        tier: ExpertTier,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """check raises where the answer is to end, before what a lost worker owes is computed here."""
        self._check = check
        self._kernel, self._kernels, self.star, self._tier = kernel, kernels, star, tier
        self.norm_outputs = kernel.norm_outputs
        self._profiler = tier.profiler
        self.stall_s = 0.0  # for which a layer waited here while a worker waited for its disk
        self._guess: tuple[int, Routing] | None = None
        self._asked: list[int] = []  # ranks whose rows are awaited
        self._elsewhere: list[tuple[int, IntArray, IntArray]] = []  # those, their experts and the tokens of each
        self._layer, self._num_tokens = 0, 0

    def expect(self, layer: int, guess: Routing) -> None:
        """Takes a guess at the next layer's routing, which goes to the workers with the rows of this one."""
        self._guess = layer, guess

    def begin(
        self, hidden: Float32Array, ids: IntArray, weights: Float32Array, layer: int = 0
    ) -> tuple[IntArray, IntArray]:
        """Returns this machine's experts among those routed to, ascending, and how many tokens each has."""
        self._forget_unfinished()
        star = self.star
        star.welcome()
        self._layer, self._num_tokens = layer, len(ids)
        self._ask_all(hidden, ids, layer)
        self._guess = None
        experts, counts = self._kernel.begin(hidden, ids, weights, layer)
        if not self._asked:
            return experts, counts
        owner = star.rows[layer][experts]
        for rank in self._asked:
            theirs = owner == rank
            self._elsewhere.append((rank, experts[theirs], counts[theirs]))
        here = owner == HERE
        return experts[here], counts[here]

    def compute(self, experts: IntArray, offsets: IntArray) -> None:
        self._kernel.compute(experts, offsets)

    def finish(self, out: Float32Array) -> None:
        """Adds the weighted outputs to out [tokens, H] in the order of the routing. Raises ExpertReadError."""
        if self._elsewhere:
            self._profiler.lap("experts")
        while self._elsewhere:
            rank, experts, counts = self._elsewhere[-1]
            try:
                connection = self.star.connection(rank)
                rows = connection.collect()
                waited_s = self._profiler.lap("workers")
                self.stall_s += min(waited_s, connection.stalled_s)
                self._kernel.put(experts, rows)
            except LostError as error:
                self.star.lose(rank, error)
                self._check()
                self._compute_here(experts, counts)
            self._elsewhere.pop()
        self._asked.clear()
        self._kernel.finish(out)

    def _ask_all(self, hidden: Float32Array, ids: IntArray, layer: int) -> None:
        owner = self.star.rows[layer]
        owner_of = owner[ids]
        wanted = set(owner_of.ravel().tolist())
        guessed: set[int] = set()
        if self._guess is not None:
            guessed = set(self.star.rows[self._guess[0]][self._guess[1].ids].ravel().tolist())
        for rank in sorted((wanted | guessed) - {HERE}):
            theirs = owner_of == rank
            tokens = slice(None) if len(ids) == 1 and rank in wanted else np.flatnonzero(theirs.any(axis=1))
            guess_layer, guess = self._guess if self._guess is not None and rank in guessed else (0, None)
            request = Request(
                layer,
                ids[tokens],
                hidden[tokens],
                self._kernels.pass_tokens,
                int(np.count_nonzero(theirs)),
                guess_layer,
                guess,
            )
            try:
                self.star.connection(rank).ask(request)
            except LostError as error:
                self.star.lose(rank, error)
            else:
                if rank in wanted:
                    self._asked.append(rank)

    def _compute_here(self, experts: IntArray, counts: IntArray) -> None:
        """What a lost worker was to compute."""
        with self._tier.lock, self._tier.visit(self._layer, experts, counts, self._num_tokens) as visit:
            for landed, offsets in visit.arrivals():
                self._kernel.compute(landed, offsets)

    def _forget_unfinished(self) -> None:
        """Replies to a layer that an error or an interrupt has ended must not be taken for those of this one."""
        self._elsewhere.clear()
        for rank in self._asked:
            connection = self.star.peers[rank - 1].connection
            if connection is None or not connection.is_asked:
                continue
            try:
                connection.collect()
            except LostError as error:
                self.star.lose(rank, error)
        self._asked.clear()


class PartKernel:
    """moeinf.runtime.experts.ExpertKernel of a worker: `finish` gives the outputs of its own experts, and no sum."""

    def __init__(self, kernel: RowKernel, tier: ExpertTier) -> None:
        self._kernel = kernel
        self.norm_outputs = kernel.norm_outputs
        self._mine: BoolArray = tier.exists().reshape(tier.shape.num_layers, -1)
        self._own: IntArray = np.empty(0, np.int64)

    def only(self, mine: BoolArray) -> None:
        """mine [layers, experts]: which experts are this rank's from now on."""
        self._mine = mine

    def begin(
        self, hidden: Float32Array, ids: IntArray, weights: Float32Array, layer: int = 0
    ) -> tuple[IntArray, IntArray]:
        """Returns this rank's experts among those routed to, ascending, and how many tokens each has."""
        experts, counts = self._kernel.begin(hidden, ids, weights, layer)
        mine = self._mine[layer][experts]
        self._own = experts[mine]
        return self._own, counts[mine]

    def compute(self, experts: IntArray, offsets: IntArray) -> None:
        self._kernel.compute(experts, offsets)

    def finish(self, out: Float32Array) -> None:
        """Fills out [pairs of a token and one of this rank's experts, H], the lowest expert's rows first."""
        self._kernel.get(self._own, out)
