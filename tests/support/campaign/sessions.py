"""Worlds in Python: the sessions of a model, what is read ahead for them, and who has which memory, as they are.

One seed decides everything: a disk that brings experts in any order, and while it is sick not all of them; the clock,
which goes on while something is waited for or computed; the memory that other programs leave; and what clients ask,
cancel and leave. Nothing runs beside it. The network is one whose rows and next tokens follow from all tokens before
(fake_cache.py), behind experts that say whose they are (fake_reader.py).
"""

from __future__ import annotations

import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from moeinf.engine.answers.sequences import Sequences
from moeinf.errors import ExpertReadError
from moeinf.hardware import MemoryState
from moeinf.models.layers.kv_cache import NewTokens
from moeinf.prefixes.memory import MemoryTier
from moeinf.prefixes.prefix_opening import turn_borders
from moeinf.prefixes.store import Limits, PrefixStore, beside
from moeinf.runtime.cache.lending import Lending
from moeinf.runtime.cache.pressure import MemoryWatch
from moeinf.runtime.experts import StreamedExperts
from moeinf.runtime.io.reader_protocol import ReadDone
from moeinf.runtime.policy.lookahead import LookAheadPredictor
from moeinf.runtime.prefetch import Prefetcher
from moeinf.sampling.cached_tokens import CachedTokens
from moeinf.sampling.loop import Timing, generate
from moeinf.sampling.room import Room
from moeinf.sampling.step_queue import Asker, Interrupted, Steps
from moeinf.types import Float32Array, IntArray, Phase, Routing
from tests.support.campaign.step import Done, Turn
from tests.support.fake_cache import ROW_BYTES, FakeCache
from tests.support.fake_reader import LAYOUT, SHAPE, Clock, FakeKernel, FakeReader, make_tier
from tests.support.stepping import stepped

OPERATIONS: Final = 300  # of a world, until its answers are only read to their ends
_CAPACITY: Final = 450  # tokens of a sequence
_BORDER: Final = 4  # the token that begins a turn
_STRIDE: Final = LAYOUT.stride_bytes
_RESERVE: Final = 4 * _STRIDE
_FEW: Final = 8  # tokens of a pass that takes no memory of slots
_PATIENCE: Final = 5_000  # rounds until all that was asked has ended, if nothing else comes


def sessions(turn: Turn) -> Done:
    """Worlds of seeds that follow a random one. A fault names its world."""
    counts, faults, begun = Counter[str](), list[str](), time.monotonic()
    seed = turn.rng.randrange(1 << 40)
    while not counts or time.monotonic() - begun < turn.seconds:
        world = World(seed)
        try:
            world.play()
        except Exception:  # the top: a fault is what this looks for
            faults.append(f"World({seed}), behind {world.counts['operations']} operations: {traceback.format_exc()}")
        counts.update({f"session: {what}": count for what, count in world.counts.items()})
        counts["session: worlds"] += 1
        seed += 1
    return Done(counts, faults)


class _Disk(FakeReader):
    """Takes its time, and while it is sick it does not bring everything. sick: the share of reads that fail."""

    def __init__(self, memory: Any, seed: int, clock: Clock) -> None:
        super().__init__(memory, seed)
        self._clock, self.sick, self._done = clock, 0.0, 0

    def wait_any(self, keys: IntArray) -> IntArray:
        self._clock.now += self._random.choice((0.001, 0.01, 0.3))
        self._failing = self._some(keys.tolist())
        return super().wait_any(keys)

    def poll(self) -> ReadDone:
        self._failing = self._some(list(self.queued))
        return super().poll()

    def land(self, keys: list[int]) -> IntArray:
        self._done += len(keys)
        return super().land(keys)

    def _some(self, keys: list[int]) -> frozenset[int]:
        return frozenset(key for key in keys if self.sick and self._random.random() < self.sick)

    def bytes_read(self) -> int:
        return self._done * _STRIDE

    def busy_seconds(self) -> float:
        return self._done * 0.01


@dataclass(eq=False)
class _Asked:
    """An answer that is being made, and the monitor of its request."""

    prompt: list[int]
    most: int
    asker: Asker
    cancelled: bool = False
    wanted: bool = False  # whether others want its place
    paused: bool = False  # whether it has left its place, as moeinf.server.turns.running_answers has it
    hit: bool = False  # whether the disk was sick while it was made
    timing: Timing = field(default_factory=Timing)
    tokens: list[int] = field(default_factory=list)
    pieces: Generator[int | None, None, None] = field(init=False)

    def check(self) -> None:
        if self.cancelled:
            raise Interrupted

    def gives_way(self) -> bool:
        self.paused |= self.wanted
        return self.paused

    def begin(self, phase: Phase) -> None: ...

    def reading(self, start: int, end: int, total: int) -> None: ...

    def prefilled(self, done: int, total: int) -> None: ...


class _Likeliest:
    def sample(self, logits: Float32Array, history: Sequence[int]) -> int:
        return int(logits.argmax())


class _Memory:
    """A tier of experts in front of a disk, on a machine whose memory others want as well."""

    def __init__(self, rng: random.Random) -> None:
        self.clock, self.others_bytes = Clock(), 0
        self.planned = rng.randint(SHAPE.top_k + 2, SHAPE.total_experts)
        self.tier, disk, policy = make_tier(
            self.planned,
            rng.choice(("lru", "next-use", "paper")),
            idle_s=rng.choice((0.0, 0.02, 0.5)),
            drain_s=0.0,
            reader_of=lambda memory: _Disk(memory, rng.randrange(999), self.clock),
        )
        assert isinstance(disk, _Disk)
        self.disk, self.tier.profiler.clock = disk, lambda: self.clock.now
        predictor = LookAheadPredictor(SHAPE)
        prefetcher = Prefetcher(self.tier, predictor, disk, SHAPE, tries=rng.random() < 0.5)
        self.gate, kernel = prefetcher._gate, FakeKernel(self.tier.memory, SHAPE.num_experts, self.clock, 0.002)
        self.experts = StreamedExperts(self.tier, kernel, [], [policy, predictor], prefetcher)
        self.lending = Lending(self.tier, lambda: None)
        self.prompt_bytes = rng.choice((0, 500, 3000, 20_000))
        self.prompts = MemoryTier(self.prompt_bytes)
        self.watch = MemoryWatch(self.tier, SHAPE.top_k, _RESERVE, lambda text: None, self._now, lambda: self.clock.now)

    @property
    def left_bytes(self) -> int:
        """Of the machine, for whoever asks next: the plan left twice the reserve."""
        slots, lent = self.tier.num_bytes + self.tier.untaken_bytes, self.lending._lent_bytes
        prompts = self.prompts.used_bytes + self.prompt_bytes - self.prompts.most_bytes  # and lent for rows
        planned = self.planned * _STRIDE + self.prompt_bytes + 2 * _RESERVE
        return planned - slots - lent - prompts - self.others_bytes

    def _now(self) -> MemoryState:
        return MemoryState(self.left_bytes + self.tier.untaken_bytes, "machine")

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.now += 1.0
            self.watch.look()

    def check(self) -> None:
        tier, lending, prompts, gate = self.tier, self.lending, self.prompts, self.gate
        tier.check_integrity()
        least = min(self.planned, tier.sizes.least_slots)
        assert least <= tier.num_slots <= tier.most_slots <= self.planned, "slots"
        whole = self.planned * _STRIDE
        assert tier.most_slots == max(least, (whole - lending._lent_bytes) // _STRIDE), "what is lent"
        blocks = list(prompts._blocks.values())
        assert prompts.used_bytes == sum(block.num_bytes for block in blocks), "bytes of kept prompts"
        assert prompts.used_bytes <= prompts.budget_bytes <= prompts.most_bytes, "the budget of kept prompts"
        assert sorted(map(id, blocks)) == sorted(id(each) for some in prompts._children.values() for each in some)
        shares = (gate._demand, gate._missed, gate.regret, gate._host / (1 + gate._host))
        assert all(0 <= share <= 1 for share in shares), f"shares of the gate: {shares}"
        assert all(0 <= used <= seen for used, seen in zip(gate._used, gate._seen, strict=True)), "buckets of the gate"
        assert gate._waiting.keys() <= set(range(SHAPE.num_layers * SHAPE.num_experts)), "keys of the gate"


class _Network:
    """Layers of experts, and behind them what a fake cache makes of a token. It is the model of the steps."""

    def __init__(self, memory: _Memory, rng: random.Random) -> None:
        self._memory, self._rng = memory, rng

    def step(self, parts: Sequence[NewTokens], between_layers: Callable[[], None]) -> Float32Array:
        memory, tokens = self._memory, np.array([abs(token) for part in parts for token in part.ids])
        memory.lending.lend(_STRIDE * max(0, len(tokens) - _FEW) // 10)
        hidden = np.stack([tokens, tokens + 1], 1).astype(np.float32)
        weights = np.full((len(tokens), SHAPE.top_k), 0.5, np.float32)
        for layer in range(SHAPE.num_layers):
            behind = layer + 1
            if behind < SHAPE.num_layers and memory.experts.wants_expectations:
                guess = _routed(tokens + (self._rng.random() < 0.2), behind)
                memory.experts.expect(behind, Routing(guess, weights))
            ids, out = _routed(tokens, layer), np.zeros_like(hidden)
            memory.experts.run(layer, hidden, Routing(ids, weights), out)
            of_experts = (layer * SHAPE.num_experts + ids).astype(np.float32).sum(1) / 2
            np.testing.assert_allclose(out, of_experts[:, None] * hidden, rtol=1e-5)
            between_layers()
        caches: list[Any] = [part.cache for part in parts]
        return np.concatenate([cache.step([part]) for cache, part in zip(caches, parts, strict=True)])


def _routed(tokens: IntArray, layer: int) -> IntArray:
    """Ids [tokens, top_k], which differ in each row."""
    first = (tokens * 5 + layer) % SHAPE.num_experts
    return np.stack([first, (first + 1 + (tokens + layer) % (SHAPE.num_experts - 1)) % SHAPE.num_experts], 1)


class World:
    """What one seed makes: `play` raises AssertionError, or whatever else should not have come, at a fault."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(f"sessions {seed}")
        self.counts = Counter[str]()
        self._memory, self._answers = _Memory(rng), list[_Asked]()
        self._rewinds, self._parallel = rng.random() < 0.6, rng.choice((1, 2, 3))
        self._limit = rng.choice((10 * _CAPACITY, 100))  # of positions, from which on others are used
        network = _Network(self._memory, rng)
        self._steps = Steps(
            network, cuts=rng.random() < 0.8, together=rng.choice((0, 64)), clock=lambda: self._memory.clock.now
        )
        limits = Limits(rng.choice((4, 16)), rng.choice((0, 10)))
        cache = self._new_cache()
        store = PrefixStore(
            cache, b"root", self._memory.prompts, None, lambda prompt: turn_borders(prompt, {_BORDER}), limits
        )
        self._memory.watch.spare = store.spare
        self._room = None
        if self._parallel > 1:
            num_bytes = int(_CAPACITY * ROW_BYTES * rng.uniform(1.0, 2.5))
            self._room = Room(num_bytes, ROW_BYTES, lend=partial(store.spare, lends=True))
        caches = iter([cache])

        def made() -> CachedTokens:
            own = next(caches, None) or self._new_cache()
            return CachedTokens(own, beside(store, own))

        self._sequences = Sequences(made, self._parallel, self._room)
        self._alone: dict[tuple[tuple[int, ...], int], list[int]] = {}
        self._texts = [self._text(rng.randint(1, 120))]

    def play(self) -> None:
        acts: list[tuple[Callable[[], None], int]] = [
            (self._begin, 5),
            (self._go_on, 60),
            (self._cancel, 1),
            (self._hang_up, 1),
            (self._set_aside, 3),
            (self._others_take, 4),
            (self._sicken, 2),
        ]
        for act in self.rng.choices([act for act, _ in acts], [often for _, often in acts], k=OPERATIONS):
            act()
            self._checked()
        self._end()

    def _checked(self) -> None:
        self.counts["operations"] += 1
        self._memory.check()
        sequences, room = self._sequences, self._room
        every = [*sequences._free, *sequences._taken]
        assert len({id(each.cache) for each in every}) == len(every) <= self._parallel, "sequences"
        assert sequences.lent <= sum(each.asker.background for each in self._answers), "answers aside"
        assert len(self._steps.seats) + sequences.lent <= len(self._answers), "seats of answers that have ended"
        if room is not None:
            assert room._used <= room.num_bytes + room._lent, "rows"
            assert room._lent == self._memory.prompt_bytes - self._memory.prompts.most_bytes, "what is lent for rows"
        for each in every:
            assert len(each.tokens) <= each.cache.length or not each.tokens, "tokens of a cache"

    # ---- what happens

    def _begin(self) -> None:
        """Somebody asks what is like something that was asked before, or not."""
        rng = self.rng
        if not self._has_place:
            return
        old = rng.choice(self._texts)
        prompt = [*old[: rng.choice((len(old), rng.randint(0, len(old))))], *self._text(rng.choice((1, 3, 40, 150)))]
        prompt = prompt[:280]
        background = rng.random() < 0.4
        asked = _Asked(prompt, rng.choice((0, 1, 5, 5, 30, 30, 290)), Asker(rng.choice("ab"), background))
        asked.hit, asked.pieces = self._memory.disk.sick > 0, self._pieces(asked)
        self._answers.append(asked)
        self._texts = [*self._texts[-8:], prompt]
        self.counts["asked"] += 1

    def _pieces(self, asked: _Asked) -> Generator[int | None, None, None]:
        with self._sequences.taken(asked.prompt) as sequence, self._steps.seat(asker=asked.asker) as seat:
            yield from generate(
                seat, sequence, asked.prompt, _Likeliest(), asked, max_tokens=asked.most, chunk=self._chunk
            )

    def _go_on(self) -> None:
        """Each answer as far as it comes, then a step."""
        for asked in list(self._answers):
            self._advance(asked)
        self._steps.run()

    def _advance(self, asked: _Asked) -> None:
        try:
            piece = next(asked.pieces)
        except StopIteration:
            self._answers.remove(asked)
            if not asked.cancelled:
                wanted = self._made_alone(asked)
                assert asked.tokens == wanted, f"{asked.tokens} for {wanted}"
            self.counts["cancelled" if asked.cancelled else "answers, each the one that it gets alone"] += 1
        except ExpertReadError:
            self._answers.remove(asked)
            assert asked.hit, "an answer failed though the disk was well"
            self.counts["failed while the disk was sick"] += 1
        else:
            if piece is not None:
                asked.tokens.append(piece)

    def _cancel(self) -> None:
        for asked in self._some():
            asked.cancelled = True

    def _hang_up(self) -> None:
        for asked in self._some():
            asked.pieces.close()
            self._answers.remove(asked)
            self.counts["left"] += 1

    def _set_aside(self) -> None:
        """A background answer leaves its place to others, or one that did so has a place again."""
        for asked in self._some():
            if asked.paused:
                self._end_pause(asked)
            elif asked.asker.background:
                asked.wanted = True
                self.counts["set aside"] += 1

    def _end_pause(self, asked: _Asked) -> None:
        if self._has_place:
            asked.wanted = asked.paused = False

    def _others_take(self) -> None:
        """Other programs take memory or give it back: once looked at, half of the reserve is left where it can be."""
        memory = self._memory
        memory.others_bytes = _STRIDE * self.rng.choice((0, 0, 3, 10, 30))
        memory.look(self.rng.randint(0, 3))
        before = memory.tier.num_slots, memory.prompts.used_bytes
        memory.look()
        after = memory.tier.num_slots, memory.prompts.used_bytes
        self.counts["looks that changed something"] += before != after
        least = memory.tier.num_slots == min(memory.planned, SHAPE.top_k) and not memory.prompts.used_bytes
        assert 2 * memory.left_bytes >= _RESERVE or least or memory.disk.queued, "what others need is not given"

    def _sicken(self) -> None:
        disk = self._memory.disk
        disk.sick = self.rng.choice((0.0, 0.0, 0.0, 0.0, 0.02, 0.5))
        for asked in self._answers:
            asked.hit |= disk.sick > 0

    def _end(self) -> None:
        """All becomes well: what was asked is answered, and all memory comes back."""
        memory = self._memory
        memory.disk.sick, memory.others_bytes, rounds = 0.0, 0, 0
        while self._answers:
            for asked in self._answers:
                if asked.paused:
                    self._end_pause(asked)
            self._go_on()
            self._checked()
            rounds += 1
            assert rounds < _PATIENCE, "answers wait for ever"
        memory.lending.lend(0)
        memory.look(4)
        self._checked()
        assert memory.tier.num_slots == self._memory.planned, "slots do not come back"
        prompts, room = memory.prompts, self._room
        assert prompts.budget_bytes == prompts.most_bytes, "memory for prompts does not come back"
        kept = room is not None and room._used > room.num_bytes  # by sequences that nobody uses: the next answer's
        assert kept or prompts.most_bytes == memory.prompt_bytes, "what was lent for rows does not come back"

    # ---- what it takes

    @property
    def _has_place(self) -> bool:
        return sum(not each.paused for each in self._answers) < self._parallel

    @property
    def _chunk(self) -> int:
        return self.rng.choice((7, 64, 512))

    def _new_cache(self) -> FakeCache:
        return FakeCache(_CAPACITY, rewinds=self._rewinds, limit=self._limit)

    def _text(self, length: int) -> list[int]:
        return [self.rng.randint(0, 4) for _ in range(length)]

    def _some(self) -> list[_Asked]:
        return self.rng.sample(self._answers, min(1, len(self._answers)))

    def _made_alone(self, asked: _Asked) -> list[int]:
        key = tuple(asked.prompt), asked.most
        if key not in self._alone:
            cache, monitor = self._new_cache(), _Asked([], 0, asked.asker)
            self._alone[key] = list(
                stepped(
                    cache,
                    CachedTokens(cache),
                    asked.prompt,
                    _Likeliest(),
                    monitor,
                    max_tokens=asked.most,
                    chunk=len(asked.prompt),
                )
            )
        return self._alone[key]
