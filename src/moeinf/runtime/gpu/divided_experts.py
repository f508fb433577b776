"""The experts of one layer on several cards: each computes those that it owns, and the first sums them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from moeinf.gpu.matrix import DeviceRouting
from moeinf.runtime.cache.table import NO_EXPERT, BoolArray
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.experts import tell_guess
from moeinf.runtime.gpu.device_experts import Guess, last_uses
from moeinf.runtime.gpu.device_slots import DeviceCompute, DeviceSlots
from moeinf.runtime.gpu.output_norms import OutputNorms
from moeinf.runtime.policy.policy_protocol import Listener
from moeinf.runtime.prefetch import Prefetcher
from moeinf.runtime.routing_check import RoutingCheck
from moeinf.types import IntArray


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU, the slots of its experts, and by key which these are."""

    compute: DeviceCompute
    slots: DeviceSlots
    prefetcher: Prefetcher | None
    mine: BoolArray

    @property
    def tier(self) -> ExpertTier:
        return self.slots.tier

    @property
    def wants_expectations(self) -> bool:
        prefetcher = self.prefetcher
        return prefetcher is not None and prefetcher.wants_expectations and not self.tier.all_resident


class DividedExperts:
    """moeinf.models.layers.protocol.Experts on several cards, the first of which computes the dense layers.

    The host learns the routing, has every card compute what it holds, and then what comes as it comes. The output of
    each expert goes to the card that computes the layer, which sums in the order of the routing: the result is that of
    one card. `of_card` is for the layers of a further card.
    """

    def __init__(self, cards: Sequence[Card], observers: Sequence[Listener], model: str = "MODEL") -> None:
        """model: its name, for errors."""
        self._check = RoutingCheck(model)
        self._cards, self._observers = cards, observers
        self._expecting = [each for each in observers if each.wants_guesses]
        self._first, self._profiler = cards[0], cards[0].tier.profiler
        self._guess: Guess | None = None
        self._norms = OutputNorms()
        self.norm_outputs = self._norms.add  # on the card that computes the layer

    @property
    def wants_expectations(self) -> bool:
        return any(card.wants_expectations for card in self._cards)

    def expect(self, layer: int, guess: DeviceRouting) -> None:
        self._guess = Guess(layer, guess)

    def step(self) -> AbstractContextManager[None]:
        """Around a step of the model, as DeviceExperts.step: here no visit outlives `run`."""
        return nullcontext()

    def of_card(self, number: int) -> ExpertsOfCard:
        """The same for layers of which a further card has the dense weights."""
        return ExpertsOfCard(self, number)

    def run(self, layer: int, hidden: Tensor, routing: DeviceRouting, out: Tensor, home: int = 0) -> None:
        """out += the experts' weighted sum; hidden, out f32 [tokens, H] on the card `home`; routing.ids int32.

        Raises ExpertReadError, NotFiniteError.
        """
        guess, self._guess = self._guess, None
        self._first.compute.program.outside(lambda: self._run(layer, hidden, routing, guess, out, home))

    def _run(
        self, layer: int, hidden: Tensor, routing: DeviceRouting, guess: Guess | None, out: Tensor, home: int
    ) -> None:
        self._profiler.lap("dispatch")
        ids = routing.ids.cpu().numpy().astype(np.int64)  # waits
        self._tell(layer, ids, routing)
        self._profiler.lap("device")
        if guess is not None:
            self._expect(guess)
        experts, counts = np.unique(ids, return_counts=True)
        order = np.argsort(last_uses(ids, experts), kind="stable")  # what the last tokens use is there at the end
        experts, counts = experts[order], counts[order]
        with ExitStack() as stack:
            shares = [_Share(card, layer, hidden, ids) for card in self._cards]
            at_home = shares.pop(home)
            for share in (*shares, at_home):  # which has most to do besides
                share.begin(stack, experts, counts)
            self._profiler.lap("policy")
            for share in (at_home, *shares):
                share.finish()
            for share in shares:
                share.bring(at_home.outputs)
            self._profiler.lap("dispatch")
        weights = self._norms.weights(layer, at_home.outputs, routing.weights)
        self._cards[home].compute.ops.vectors.combine(at_home.outputs, weights, out)

    def _tell(self, layer: int, ids: IntArray, routing: DeviceRouting) -> None:
        """Tells who watches the routing, once it is sound. Raises NotFiniteError."""
        weights = routing.weights.cpu().numpy()
        self._check(layer, ids, weights)
        for observer in self._observers:
            observer.routed(layer, ids, weights)

    def _expect(self, guess: Guess) -> None:
        ids, weights = (values.cpu().numpy() for values in guess.routing)
        tell_guess(self._expecting, guess.layer, ids.astype(np.int64), weights)


class ExpertsOfCard:
    """moeinf.models.layers.protocol.Experts of the layers of one card."""

    def __init__(self, experts: DividedExperts, number: int) -> None:
        self._experts, self._number = experts, number
        self.expect, self.norm_outputs = experts.expect, experts.norm_outputs

    @property
    def wants_expectations(self) -> bool:
        return self._experts.wants_expectations

    def run(self, layer: int, hidden: Tensor, routing: DeviceRouting, out: Tensor) -> None:
        self._experts.run(layer, hidden, routing, out, self._number)


class _Share:
    """What one card computes of a layer."""

    def __init__(self, card: Card, layer: int, hidden: Tensor, ids: IntArray) -> None:
        """outputs [tokens * top_k, hidden] on the card: rows of the token-expert pairs that it computes."""
        self._card, self._layer, self._ids = card, layer, ids
        device, self._parts = card.compute.device, card.compute.parts[layer]
        first_key = layer * card.tier.shape.num_experts
        self._mine = card.mine[first_key : first_key + card.tier.shape.num_experts]
        self._arrivals: Iterator[tuple[IntArray, IntArray]] = iter(())
        with device.computing():
            self._hidden = hidden.to(device.kind, non_blocking=True)
            sizes = (self._parts.up.rows, self._parts.down.rows)
            self._act, self.outputs = (
                torch.empty((ids.size, size), dtype=torch.float32, device=device.kind) for size in sizes
            )

    def begin(self, stack: ExitStack, experts: IntArray, counts: IntArray) -> None:
        """Queues reads and copies of what is missing, and computes what is there."""
        card, owned = self._card, self._mine[experts]
        with card.compute.device.computing():
            visit = card.tier.visit(self._layer, experts[owned], counts[owned], len(self._ids))
            stack.enter_context(visit)
            self._arrivals = visit.arrivals()
            if visit.any_ready:
                self._compute(*next(self._arrivals))
            if card.prefetcher is not None:
                card.prefetcher.after_routing(visit)

    def finish(self) -> None:
        """Computes the rest as it comes. Raises ExpertReadError."""
        with self._card.compute.device.computing():
            for landed, offsets in self._arrivals:
                self._compute(landed, offsets)

    def bring(self, outputs: Tensor) -> None:
        """Copies the rows of this card to their places in those of the layer's."""
        pairs = np.flatnonzero(self._mine[self._ids.ravel()])
        if not len(pairs):
            return
        device = self._card.compute.device
        with device.computing():
            rows = self.outputs[torch.from_numpy(pairs).to(device.kind)].to(outputs.device, non_blocking=True)
        outputs[torch.from_numpy(pairs).to(outputs.device)] = rows

    def _compute(self, landed: IntArray, offsets: IntArray) -> None:
        card, shape = self._card, self._card.tier.shape
        device, matrices = card.compute.device, card.compute.ops.matrices
        card.slots.copies.order_compute(landed + self._layer * shape.num_experts)
        blocks = card.slots.arena.addresses(offsets)
        if len(self._ids) > 1:
            groups = matrices.make_groups(self._ids, landed, blocks, device.kind)
            matrices.gate_up_grouped(self._hidden, groups, self._parts, self._act)
            matrices.down_grouped(self._act, groups, self._parts, self.outputs)
            return
        of_expert = np.zeros(shape.num_experts, np.int64)
        of_expert[landed] = blocks
        addresses = torch.from_numpy(of_expert[self._ids[0]]).to(device.kind)  # 0: not computed in this turn
        matrices.gate_up(self._hidden, addresses, self._parts, self._act)
        matrices.down(self._act, addresses, self._parts, self.outputs)


class FirstTier(ExpertTier):
    """The tier of the first of several cards, which tells of all of them where a model is looked at.

    They count together: each cache was given the same CacheStats.
    """

    others: Sequence[ExpertTier] = ()  # those of the other cards

    @property
    def num_experts(self) -> int:
        return super().num_experts + sum(tier.num_experts for tier in self.others)

    @property
    def num_bytes(self) -> int:
        return super().num_bytes + sum(tier.num_bytes for tier in self.others)

    def states(self) -> npt.NDArray[np.uint8]:
        states = super().states()
        for tier in self.others:
            states = np.where(states == NO_EXPERT, tier.states(), states)
        return states

    def end_request(self) -> None:
        super().end_request()
        for tier in self.others:
            tier.end_request()

    def check_integrity(self) -> None:
        super().check_integrity()
        for tier in self.others:
            tier.check_integrity()
