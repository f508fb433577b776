"""Slots that are given back while others need memory, on a machine whose memory and clock the tests make up."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf._native import Arena, give_back
from moeinf.hardware import MemoryState
from moeinf.runtime.cache.pressure import MemoryWatch
from moeinf.runtime.experts import StreamedExperts
from moeinf.runtime.io.pages import PagesAhead
from moeinf.runtime.io.reader_protocol import ReadDone
from moeinf.runtime.policy.policy_protocol import Listener
from moeinf.types import IntArray, Routing
from tests.support.fake_reader import LAYOUT, SHAPE, Clock, FakeKernel, Tier, make_tier, visit
from tests.support.resident import NotedTaker, resident_bytes

MIB = 1 << 20
STRIDE = LAYOUT.stride_bytes
RESERVE = 4 * STRIDE
TOP_K = SHAPE.top_k
PROMPT = np.array([[0, 1], [2, 3], [4, 5]])


class Host:
    """Memory that is available in whole slots, and how long it was waited for."""

    def __init__(self) -> None:
        self.slots = 4.0
        self.stall_s = 0.0
        self.clock = Clock()
        self.notices: list[str] = []
        self.freed = 0.0  # slots' worth of what this process has freed, and has not given back
        self.given_back = 0  # how often it was asked to

    def give_back(self) -> None:
        self.given_back += 1
        self.slots, self.freed = self.slots + self.freed, 0.0

    def state(self) -> MemoryState:
        return MemoryState(int(self.slots * STRIDE), "control group /a", self.stall_s)

    def watch(self, tier: Tier) -> MemoryWatch:
        return MemoryWatch(
            tier, TOP_K, RESERVE, self.notices.append, self.state, lambda: self.clock.now, self.give_back
        )

    def look(self, watch: MemoryWatch, slots: float) -> bool:
        self.slots = slots
        self.clock.now += 1.0
        return watch.look()


def test_what_was_freed_goes_before_slots_once_for_each_shortage() -> None:
    tier, _, _ = make_tier(12)
    host = Host()
    watch = host.watch(tier)
    assert not host.look(watch, 4.0) and host.given_back == 0
    host.freed = 3.0
    assert not host.look(watch, 1.0) and (host.given_back, tier.num_slots) == (1, 12)  # now four are left again
    host.freed = 0.5
    for _ in range(3):
        assert host.look(watch, 1.0)
    assert host.given_back == 2 and tier.num_slots < 12
    assert not host.look(watch, 4.0)
    assert host.look(watch, 1.0) and host.given_back == 3


def test_what_is_kept_of_prompts_goes_before_slots_and_comes_after_them() -> None:
    tier, _, _ = make_tier(12)
    host, asked = Host(), list[int]()
    watch = host.watch(tier)

    def spare(num_bytes: int) -> int:
        asked.append(num_bytes)
        return 2 * STRIDE if num_bytes > 0 else 0

    watch.spare = spare
    assert host.look(watch, slots=1), "memory is short until the next look"
    assert asked == [3 * STRIDE] and tier.num_slots == 11, "the slots give only what is still missing"
    assert not host.look(watch, slots=100) and tier.num_slots == 12 and len(asked) == 1
    assert not host.look(watch, slots=10) and asked[-1] == -6 * STRIDE, "once all slots are there again"


def test_slots_go_while_memory_is_short_and_come_again_afterwards() -> None:
    tier, reader, policy = make_tier(12)
    host = Host()
    watch = host.watch(tier)
    visit(tier, policy, 0, PROMPT)
    assert host.look(watch, slots=1) and tier.num_slots == 9, "as many as bring the reserve back"
    assert host.look(watch, slots=-50) and tier.num_slots == TOP_K, "but those that a token needs"
    tier.check_integrity()
    for layer in range(SHAPE.num_layers):
        visit(tier, policy, layer, PROMPT)
    assert not host.look(watch, slots=9) and tier.num_slots == TOP_K + 5
    assert not host.look(watch, slots=100) and tier.num_slots == 12, "no more than there were"
    submitted = reader.submitted
    visit(tier, policy, 0, PROMPT)
    visit(tier, policy, 0, PROMPT)
    tier.check_integrity()
    assert reader.submitted - submitted <= 6, "what has come again stays"
    assert tier.stats.given_back_bytes == 10 * STRIDE
    assert (
        len(host.notices) == 1
        and "the control group /a ran short of memory: 25 % of the experts left" in host.notices[0]
    )


def test_where_no_thread_can_be_started_a_note_says_that_memory_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    tier, _, _ = make_tier(12)
    host = Host()
    watch = host.watch(tier)
    watch.start()
    watch.close()
    assert len(host.notices) == 1 and "cache stays as it is" in host.notices[0] and "ulimit -u" in host.notices[0]


@pytest.mark.parametrize("slots", [2, 4, 6])
def test_small_changes_move_nothing(slots: int) -> None:
    tier, _, _ = make_tier(12)
    host = Host()
    watch = host.watch(tier)
    host.look(watch, slots=1)
    assert tier.num_slots == 9
    assert not host.look(watch, slots) and tier.num_slots == 9


def test_twice_the_reserve_is_kept_while_something_waits_for_memory() -> None:
    tier, _, _ = make_tier(12)
    host = Host()
    watch = host.watch(tier)
    assert not host.look(watch, slots=3) and tier.num_slots == 12
    host.stall_s += 0.2
    assert host.look(watch, slots=3) and tier.num_slots == 7
    host.stall_s += 0.05
    assert not host.look(watch, slots=3), "five percent of the time is no need"


def test_memory_that_the_slots_have_not_taken_so_far_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    tier, _, _ = make_tier(12)
    host = Host()
    watch = host.watch(tier)
    monkeypatch.setattr(Tier, "untaken_bytes", 8 * STRIDE)
    assert host.look(watch, slots=9) and tier.num_slots == 9


def test_a_read_that_never_ends_keeps_its_slot_and_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    tier, reader, policy = make_tier(12, drain_s=0.0)
    host = Host()
    watch = host.watch(tier)
    visit(tier, policy, 0, PROMPT)
    none = np.empty(0, np.int64)
    monkeypatch.setattr(reader, "poll", lambda: ReadDone(none, none))
    monkeypatch.setattr(reader, "cancel", lambda keys: none)
    tier.prefetches.submit(np.array([6, 7]), np.array([0.9, 0.8]))
    assert host.look(watch, slots=-50) and tier.num_slots == 12 and not host.notices
    monkeypatch.undo()
    while reader.queued:
        visit(tier, policy, 0, PROMPT)
    assert host.look(watch, slots=-50) and tier.num_slots == TOP_K and len(host.notices) == 1
    tier.check_integrity()


@settings(max_examples=100)
@given(
    num_slots=st.integers(TOP_K, 18),
    seed=st.integers(0, 999),
    prefetching=st.booleans(),
    steps=st.lists(st.tuples(st.integers(0, SHAPE.num_layers - 1), st.floats(-20, 40)), max_size=12),
)
def test_every_visit_finds_its_experts_however_memory_comes_and_goes(
    num_slots: int, seed: int, prefetching: bool, steps: list[tuple[int, float]]
) -> None:
    tier, _, policy = make_tier(num_slots, seed=seed)
    host = Host()
    watch = host.watch(tier)
    for layer, slots in steps:
        visit(tier, policy, layer, PROMPT)
        absent = np.flatnonzero(~tier.prefetches.known(0, SHAPE.num_layers).ravel())[: max(0, tier.prefetches.room)]
        if prefetching and len(absent):
            tier.prefetches.submit(absent, np.full(len(absent), 0.5))
        host.look(watch, slots)
        tier.check_integrity()
        assert TOP_K <= tier.num_slots <= num_slots


def test_slots_are_resized_between_visits_and_never_in_one() -> None:
    tier, _, policy = make_tier(12)
    host = Host()
    watch = host.watch(tier)
    kernel = FakeKernel(tier.memory, SHAPE.num_experts)
    experts = StreamedExperts(tier, kernel, [], [policy], None)
    looker = threading.Thread(target=host.look, args=(watch, -50))
    compute, seen = kernel.compute, []

    def compute_beside_a_look(experts: IntArray, offsets: IntArray) -> None:
        if not looker.ident:
            looker.start()
        seen.append((tier.lock.locked(), tier.num_slots))
        compute(experts, offsets)

    kernel.compute = compute_beside_a_look  # type: ignore[method-assign]
    weights = np.full((3, 2), 0.5, np.float32)
    experts.run(0, np.ones((3, 4), np.float32), Routing(PROMPT, weights), np.zeros((3, 4), np.float32))
    looker.join()
    assert seen and set(seen) == {(True, 12)} and tier.num_slots == TOP_K
    tier.check_integrity()


def test_advisers_hear_of_routing_only_where_something_can_be_missing() -> None:
    """And of that some was left out, in front of the next: their last word may be of another pass."""
    tier, _, policy = make_tier(SHAPE.total_experts)
    told: list[int | str] = []

    class Watched(Listener):
        name = "watched"

        def observe(self, layer: int, ids: np.ndarray) -> None:
            told.append(layer)
            policy.observe(layer, ids)

        def restart(self) -> None:
            told.append("restart")

        def predict(self, layer: int) -> None:
            return None

    tier.load_all(lambda done, total: None)
    experts = StreamedExperts(tier, FakeKernel(tier.memory, SHAPE.num_experts), [], [Watched()], None)
    arguments = np.ones((3, 4), np.float32), Routing(PROMPT, np.full((3, 2), 0.5, np.float32))
    experts.run(0, *arguments, np.zeros((3, 4), np.float32))
    assert not told
    tier.resize(TOP_K)
    first, second = np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32)
    experts.run(1, *arguments, first)
    tier.resize(SHAPE.total_experts)
    experts.run(1, *arguments, second)
    assert told == ["restart", 1, 1] and (first == second).all()
    tier.load_all(lambda done, total: None)
    experts.run(2, *arguments, second)
    tier.resize(TOP_K)
    experts.run(0, *arguments, second)
    experts.run(1, *arguments, second)
    assert told == ["restart", 1, 1, "restart", 0, 1]


def test_slots_can_be_taken_away_while_they_are_loaded() -> None:
    tier, _, policy = make_tier(SHAPE.total_experts)
    lookers: list[threading.Thread] = []

    def progress(done: int, total: int) -> None:
        if not lookers:
            lookers.append(threading.Thread(target=tier.resize, args=(5,)))
            lookers[0].start()

    tier.load_all(progress)
    lookers[0].join()
    tier.check_integrity()
    assert tier.num_slots == 5 and len(tier.snapshot().resident) <= 5
    visit(tier, policy, 1, PROMPT)


@pytest.mark.parametrize("error", [MemoryError(), ValueError("of a file of the kernel"), SystemExit(3)])
def test_a_look_that_raises_is_told_of_once_and_others_follow(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    tier, _, _ = make_tier(12)
    host, looks = Host(), threading.Semaphore(0)

    def failing() -> MemoryState:
        looks.release()
        raise error

    monkeypatch.setattr("moeinf.runtime.cache.pressure.LOOK_S", 0.001)
    watch = host.watch(tier)
    watch._memory = failing
    watch.start()
    assert all(looks.acquire(timeout=30) for _ in range(3))
    watch.close()
    assert host.notices == [f"a look at the machine's memory failed, and the next follows: {error!r}"]


def test_a_watch_that_is_forgotten_holds_no_tier_and_its_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moeinf.runtime.cache.pressure.LOOK_S", 0.001)
    tier, _, _ = make_tier(12)
    watch, held = Host().watch(tier), weakref.ref(tier)
    watch.start()
    thread = watch._thread
    del watch, tier
    thread.join(30)
    gc.collect()
    assert not thread.is_alive() and held() is None


def test_memory_that_is_given_back_is_the_machines_again() -> None:
    arena = Arena(96 * MIB)
    memory = arena.array()
    memory[:] = 1
    before = resident_bytes()
    assert give_back(memory[32 * MIB + 100 :])
    assert before - resident_bytes() > 48 * MIB
    assert (memory[: 32 * MIB + 100] == 1).all() and not memory[33 * MIB :].any()


def test_pages_are_no_longer_taken_beyond_the_end_and_are_again_when_it_moves() -> None:
    taker = NotedTaker()
    taken = taker.taken
    ahead = PagesAhead(Arena(64 * MIB).array(), taker=lambda memory: taker)
    assert ahead.untaken_bytes == 64 * MIB
    ahead.resize(33 * MIB)
    ahead.reach(MIB)
    ahead.resize(20 * MIB)
    assert ahead.all_taken and ahead.untaken_bytes == 0 and max(last for _, last in taken) == 33 * MIB
    taken.clear()
    ahead.resize(64 * MIB)
    assert not ahead.all_taken and ahead.untaken_bytes == 44 * MIB
    ahead.reach(21 * MIB)
    ahead.resize(64 * MIB - 1)
    assert min(first for first, _ in taken) == 20 * MIB
