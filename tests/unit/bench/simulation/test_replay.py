"""The replay of a trace, against a slow obvious cache and against the bound."""

from __future__ import annotations

from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf.bench.simulation.belady import Belady
from moeinf.bench.simulation.replay import SimulatedTier, drive, replay, whole
from moeinf.bench.simulation.run import UNTIMED, SimulatedRun, Timing, one_size
from moeinf.bench.simulation.simulate import sized_slots
from moeinf.bench.simulation.simulated_link import SimulatedLink
from moeinf.errors import UsageError
from moeinf.runtime.cache.slot_sizes import SlotSizes, slot_sizes
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.policy.eviction import POLICIES, make_policy
from moeinf.runtime.policy.policy_protocol import EvictionPolicy
from moeinf.runtime.policy.policy_trace import RequestRecorder
from moeinf.runtime.policy.predictors import PREDICTORS, make_predictor
from moeinf.traces.guesses import DrawnGuesses, LookAheadQuality
from moeinf.traces.rows_of_steps import StepForm, arranged
from moeinf.traces.trace import Trace, load_trace, passes_of
from moeinf.types import MoeShape

TRACES = Path(__file__).parents[3] / "support" / "traces"
SHAPE = MoeShape(num_layers=3, num_experts=6, top_k=2)
Key = tuple[int, int]


def random_trace(seed: int, tokens: int = 30, requests: int = 3) -> Trace:
    """Tokens that lean on the experts of the one before, as real ones do."""
    rng = np.random.default_rng(seed)
    liking = rng.random((SHAPE.num_layers, SHAPE.num_experts))
    experts = np.zeros((tokens, SHAPE.num_layers, SHAPE.top_k), np.int64)
    for token in range(tokens):
        liking = 0.6 * liking + 0.4 * rng.random(liking.shape)
        experts[token] = np.argsort(-liking, axis=1)[:, : SHAPE.top_k]
    return Trace("random", SHAPE, experts, np.linspace(0, tokens, requests + 1).astype(np.int64))


def telling_trace(seed: int, tokens: int) -> Trace:
    """A layer's experts tell those of the next."""
    rng = np.random.default_rng(seed)
    first = rng.random((tokens, SHAPE.num_experts)).argsort(axis=1)[:, : SHAPE.top_k]
    experts = np.stack([(first + layer) % SHAPE.num_experts for layer in range(SHAPE.num_layers)], axis=1)
    return Trace("telling", SHAPE, experts, np.array([0, tokens]))


def fresh(name: str, trace: Trace, slots: int) -> tuple[EvictionPolicy, RequestRecorder]:
    collection = ActivationCollection(trace.shape)
    policy = Belady(trace) if name == "belady" else make_policy(name, trace.shape, collection, slots)
    return policy, RequestRecorder(trace.shape, collection.add)


def replayed(
    name: str, trace: Trace, slots: int, timing: Timing = UNTIMED, sizes: SlotSizes | None = None
) -> CacheStats:
    policy, recorder = fresh(name, trace, slots)
    return whole(replay(trace, [SimulatedTier(slots, policy, sizes)], recorder, timing=timing)[0])


def hits_of(name: str, trace: Trace, slots: int) -> int:
    return replayed(name, trace, slots).hits


def obvious_replay(
    trace: Trace, slots: int, policy: EvictionPolicy, recorder: RequestRecorder, sizes: SlotSizes
) -> CacheStats:
    """Dictionaries and sorting, one activation after the other."""
    of_layers, of_slots = sizes.of_layers.tolist(), sizes.order[:slots].tolist()
    stats, resident = CacheStats(), set[Key]()
    for start, end in zip(trace.offsets[:-1], trace.offsets[1:], strict=True):
        for token in range(start, end):
            for layer in range(trace.shape.num_layers):
                for observer in (recorder, policy):
                    if layer == 0 and token == start:
                        observer.begin("prefill")
                    if layer == 0 and token == start + 1:
                        observer.begin("decode")
                    observer.observe(layer, trace.experts[token, layer][None])
                scores = policy.keep_scores(layer)
                needed = [(layer, int(expert)) for expert in trace.experts[token, layer]]
                missing = [key for key in needed if key not in resident]
                stats.hits += len(needed) - len(missing)
                stats.misses += len(missing)
                stats.demand_reads += len(missing)
                stats.demand_bytes += len(missing) * sizes.class_bytes[of_layers[layer]]
                alike = {key for key in resident if of_layers[key[0]] == of_layers[layer]}
                surplus = max(0, len(alike) + len(missing) - of_slots.count(of_layers[layer]))
                candidates = sorted(alike - set(needed), key=lambda key: (scores[key], key))
                resident = (resident - set(candidates[:surplus])) | set(missing)
    return stats


@pytest.mark.parametrize("name", [*POLICIES, "belady"])
@pytest.mark.parametrize(
    ("slots", "layer_bytes"), [(2, (1, 1, 1)), (5, (1, 1, 1)), (6, (3, 5, 4)), (11, (5, 3, 5)), (18, (1, 2, 1))]
)
def test_the_replay_counts_as_a_brute_force_replay_does(
    name: str, slots: int, layer_bytes: tuple[int, int, int]
) -> None:
    trace, sizes = random_trace(seed=slots), slot_sizes(layer_bytes, SHAPE)
    fast = replayed(name, trace, slots, sizes=sizes)
    obvious = obvious_replay(trace, slots, *fresh(name, trace, slots), sizes)
    assert fast == replace(obvious, stall_s=fast.stall_s)


def obvious_steps(trace: Trace, slots: int, policy: EvictionPolicy, recorder: RequestRecorder) -> CacheStats:
    """The same of passes of several rows: a layer reads what any of its rows lacks, once."""
    stats, resident = CacheStats(), set[Key]()
    for begins, first, last in passes_of(trace):
        for layer in range(trace.shape.num_layers):
            for observer in (recorder, policy):
                if begins and not layer:
                    observer.begin(begins)
                observer.observe(layer, trace.experts[first:last, layer])
            scores = policy.keep_scores(layer)
            used = [(layer, int(expert)) for row in trace.experts[first:last, layer] for expert in row]
            missing = {key for key in used if key not in resident}
            stats.misses += sum(key in missing for key in used)
            stats.hits += sum(key not in missing for key in used)
            stats.demand_reads += len(missing)
            candidates = sorted(resident - set(used), key=lambda key: (scores[key], key))
            resident = (resident - set(candidates[: max(0, len(resident | missing) - slots)])) | missing
    stats.demand_bytes = stats.demand_reads
    return stats


@pytest.mark.parametrize("name", [*POLICIES, "belady"])
@pytest.mark.parametrize(
    ("form", "slots"),
    [(StepForm(2), 11), (StepForm(3), 13), (StepForm(1, 2, 0.6), 12), (StepForm(2, 1, 0.8), 15), (StepForm(3), 18)],
)
def test_steps_of_several_rows_count_as_a_brute_force_replay_does(name: str, form: StepForm, slots: int) -> None:
    """Of slots for two layers: with fewer a step's experts come in waves, so that it evicts half of them at most."""
    trace = arranged(random_trace(seed=slots, tokens=60), form, seed=slots).trace
    obvious = obvious_steps(trace, slots, *fresh(name, trace, slots))
    assert replayed(name, trace, slots) == obvious


def test_rows_of_a_step_that_are_alike_read_what_one_reads() -> None:
    one = random_trace(seed=2, tokens=20, requests=1)
    both = replace(one, experts=np.tile(one.experts, (2, 1, 1)), offsets=np.array([0, 20, 40]))
    for name in POLICIES:
        together = replayed(name, arranged(both, StepForm(2)).trace, 18)
        assert together.demand_reads == replayed(name, one, 18).demand_reads
        assert together.misses == 2 * together.demand_reads


def test_a_cache_of_a_share_of_the_bytes_has_the_slots_of_an_engine() -> None:
    trace = replace(random_trace(0), expert_bytes=(4096, 8192, 4096))
    slots, sizes = sized_slots(trace, 50)
    assert sizes.class_bytes == (8192, 4096) and slots == sizes.slots_in(6 * 8192) == 9
    assert sized_slots(trace, 10)[1].class_bytes == (8192,), "each size would keep slots for a token's layer"
    assert sized_slots(random_trace(0), 50) == (9, one_size(SHAPE))


@pytest.mark.parametrize("layer_bytes", [(1, 1, 1), (3000, 4000, 5000)])
def test_reads_take_as_long_as_their_experts_are_large(layer_bytes: tuple[int, int, int]) -> None:
    trace = random_trace(3)
    policy, _ = fresh("lru", trace, 9)
    run = SimulatedRun(SHAPE, 9, policy, None, Timing(read_s=2.0), slot_sizes(layer_bytes, SHAPE))
    for layer, size in enumerate(layer_bytes):
        before = run.now
        run.visit(layer, np.array([0, 4]), np.ones(2, np.int64), 1)
        assert run.now - before == pytest.approx(2 * 2.0 * size / np.mean(layer_bytes))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 18))
def test_no_policy_hits_more_often_than_belady(seed: int, slots: int) -> None:
    trace = random_trace(seed)
    bound = hits_of("belady", trace, slots)
    assert all(hits_of(name, trace, slots) <= bound for name in POLICIES)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(POLICIES),
    st.sampled_from(PREDICTORS),
    st.integers(2, 18),
    st.integers(0, 3),
    st.integers(0, 6),
)
def test_every_activation_is_a_hit_or_a_miss(
    seed: int, name: str, predictor: str, slots: int, per_visit: int, prefill: int
) -> None:
    trace = random_trace(seed)
    policy, recorder = fresh(name, trace, slots)
    guess = make_predictor(predictor, SHAPE, ActivationCollection(SHAPE))
    timing = Timing(read_s=1.0, layer_s=float(per_visit))
    stats = whole(replay(trace, [SimulatedTier(slots, policy)], recorder, guess, timing, prefill)[0])
    assert stats.hits + stats.misses == SHAPE.num_layers * SHAPE.top_k * trace.num_tokens
    assert stats.prefetches_used + stats.prefetches_wasted <= stats.prefetches


@pytest.mark.parametrize("predictor", ["none", "frequency", "cross-layer", "look-ahead"])
@pytest.mark.parametrize("slots", [2, 4, 9, 15])
@pytest.mark.parametrize("prefill", [0, 4])
def test_waiting_for_all_reads_of_a_visit_at_once_changes_no_figure(
    monkeypatch: pytest.MonkeyPatch, predictor: str, slots: int, prefill: int
) -> None:
    """The slow form looks up after each read, as a machine that computes what has landed does."""

    def run() -> list[tuple[float, ...]]:
        trace = random_trace(slots)
        guesses = DrawnGuesses(trace, LookAheadQuality(0.8, 0.8, 2.0))
        policy, recorder = fresh("next-use", trace, slots)
        guess = make_predictor(predictor, SHAPE, ActivationCollection(SHAPE))
        timing = Timing(read_s=1.0, layer_s=1.7)
        (phases,) = replay(trace, [SimulatedTier(slots, policy)], recorder, guess, timing, prefill, guesses)
        return [(*astuple(phase.stats), phase.tokens, phase.seconds) for phase in phases.values()]

    fast = run()
    monkeypatch.setattr(SimulatedLink, "_has_waited", lambda self, wanted: not wanted.isdisjoint(self._landed))
    for found, wanted in zip(fast, run(), strict=True):
        assert found == pytest.approx(wanted, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 18), st.booleans())
def test_a_run_never_holds_more_than_its_slots_and_keeps_what_a_token_used(seed: int, slots: int, ahead: bool) -> None:
    rng, policy = np.random.default_rng(seed), make_policy("next-use", SHAPE, ActivationCollection(SHAPE), slots)
    predictor = make_predictor("frequency", SHAPE, ActivationCollection(SHAPE)) if ahead else None
    run = SimulatedRun(SHAPE, slots, policy, predictor, Timing(read_s=1.0, layer_s=2.5))
    for _ in range(20):
        layer, tokens = int(rng.integers(3)), int(rng.integers(1, 4))
        ids = rng.random((tokens, SHAPE.num_experts)).argsort(axis=1)[:, : SHAPE.top_k]
        for observer in (policy, predictor):
            if observer is not None:
                observer.observe(layer, ids)
        experts, counts = np.unique(ids, return_counts=True)
        run.visit(layer, experts, counts, tokens)
        run.tier.check_integrity()
        now = run.tier.snapshot()
        assert len(now.resident) + len(now.loading) <= slots
        assert (
            ahead or tokens > 1 or {layer * SHAPE.num_experts + expert for expert in experts.tolist()} <= now.resident
        )


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("prefill", [0, 4])
def test_a_visit_whose_reads_take_no_time_counts_as_one_that_goes_through_the_reader(name: str, prefill: int) -> None:
    trace = random_trace(seed=9, tokens=80)
    for slots in (3, 7, 12):
        runs = []
        for at_once in (True, False):
            policy, recorder = fresh(name, trace, slots)
            run = SimulatedRun(SHAPE, slots, policy)
            assert run._at_once
            run._at_once = at_once
            drive(trace, [run], [recorder, policy], None, prefill)
            run.tier.check_integrity()
            runs.append(run)
        fast, slow = runs
        assert fast.results.of == slow.results.of and fast.tier.snapshot() == slow.tier.snapshot()


def test_phases_add_up_to_the_whole_and_their_time_to_that_of_the_clock() -> None:
    trace = random_trace(seed=10, tokens=60, requests=3)
    policy, recorder = fresh("next-use", trace, 7)
    (result,) = replay(trace, [SimulatedTier(7, policy)], recorder, timing=Timing(1.0, 0.5), prefill_tokens=8)
    assert (result["prefill"].tokens, result["decode"].tokens) == (24, 36)
    visits = SHAPE.num_layers * (3 + 36)
    seconds = sum(phase.seconds for phase in result.values())
    assert seconds == pytest.approx(whole(result).stall_s + 0.5 * visits)
    assert whole(result).activations == 60 * SHAPE.num_layers * SHAPE.top_k
    everything = replay(trace, [SimulatedTier(7, fresh("next-use", trace, 7)[0])])[0]
    assert list(everything) == ["decode"], "without a word of prefill all is decode"


def test_several_caches_in_one_pass_do_what_each_does_alone() -> None:
    trace = random_trace(seed=4)
    policy, recorder = fresh("next-use", trace, 0)
    together = replay(trace, [SimulatedTier(slots, policy) for slots in (2, 9, 18)], recorder)
    assert [whole(each) for each in together] == [replayed("next-use", trace, slots) for slots in (2, 9, 18)]


def test_with_everything_resident_each_expert_misses_once() -> None:
    trace = random_trace(seed=5)
    stats = replayed("lru", trace, 18)
    used = {(layer, expert) for token in trace.experts for layer in range(3) for expert in token[layer]}
    assert stats.misses == stats.demand_reads == len(used)


def test_next_use_survives_a_cache_below_the_working_set_of_a_token() -> None:
    trace = random_trace(seed=6, tokens=200)
    assert hits_of("lru", trace, 4) == 0 < hits_of("next-use", trace, 4)


@pytest.mark.parametrize(("layer_s", "in_time"), [(2.0, True), (0.1, False)])
def test_a_prefetched_expert_is_a_hit_where_the_link_had_time_for_it(layer_s: float, in_time: bool) -> None:
    trace = telling_trace(seed=7, tokens=200)
    policy, recorder = fresh("next-use", trace, 9)
    guess = make_predictor("cross-layer", SHAPE, ActivationCollection(SHAPE))
    stats = whole(replay(trace, [SimulatedTier(9, policy)], recorder, guess, Timing(read_s=1.0, layer_s=layer_s))[0])
    without = replayed("next-use", trace, 9, Timing(read_s=1.0, layer_s=layer_s))
    assert 0 < stats.prefetches_used <= stats.prefetches
    assert stats.demand_reads < without.demand_reads
    assert (stats.hits > without.hits) == in_time and (stats.late_hits > stats.prefetches_used // 2) != in_time


def test_the_time_that_computing_waits_is_that_of_the_reads() -> None:
    trace = random_trace(seed=8)
    stats = replayed("lru", trace, 5, Timing(read_s=2.0, layer_s=1.0))
    assert stats.stall_s == 2.0 * stats.demand_reads > 0


def test_a_cache_too_small_for_one_token_is_refused() -> None:
    with pytest.raises(UsageError, match="1 slots cannot hold the 2"):
        SimulatedRun(SHAPE, 1, make_policy("lru", SHAPE, ActivationCollection(SHAPE), 1), None, Timing())


def write(folder: Path, **changed: object) -> Path:
    fields: dict[str, object] = {
        "experts": np.zeros((4, 2, 1), np.uint8),
        "offsets": np.array([0, 3, 4]),
        "layers": np.arange(2, dtype=np.int16),
        "n_experts": 3,
        "top_k": 1,
    }
    np.savez(folder / "routing.npz", **(fields | changed))  # type: ignore[arg-type]
    return folder


def test_a_trace_is_read_and_cut_at_a_number_of_tokens(tmp_path: Path) -> None:
    whole, cut = load_trace(write(tmp_path)), load_trace(write(tmp_path), max_tokens=2)
    assert whole.shape == cut.shape == MoeShape(2, 3, 1)
    assert (whole.offsets.tolist(), whole.num_tokens) == ([0, 3, 4], 4)
    assert (cut.offsets.tolist(), cut.num_tokens) == ([0, 2], 2)


def test_layers_of_a_trace_may_differ_in_their_experts(tmp_path: Path) -> None:
    trace = load_trace(
        write(tmp_path, n_experts=[1, 3], experts=np.array([[[0], [2]], [[0], [1]]], np.uint8), offsets=[0, 2])
    )
    assert trace.shape == MoeShape(2, 3, 1, (1, 3))
    stats = replayed("lru", trace, 4)
    assert (stats.hits, stats.misses) == (1, 3)
    with pytest.raises(UsageError, match="experts do not fit"):
        load_trace(write(tmp_path, n_experts=[3, 1], experts=np.array([[[0], [2]]], np.uint8)))


@pytest.mark.parametrize(
    "changed",
    [
        {"experts": np.full((4, 2, 1), 3)},
        {"experts": np.zeros((4, 2, 2), np.uint8)},
        {"experts": np.zeros((0, 2, 1))},
        {"experts": np.zeros(4)},
        {"experts": np.full((4, 2, 1), -1)},
        {"top_k": np.array([1, 2])},
        {"offsets": np.array([0, 3, 2])},
        {"offsets": np.array([1, 4])},
        {"offsets": np.array(["a", "b"])},
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, changed: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"routing\.npz is not a routing trace"):
        load_trace(write(tmp_path, **changed))


def test_a_folder_without_a_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no routing\.npz"):
        load_trace(tmp_path)
    (tmp_path / "routing.npz").write_bytes(b"PK not really")
    with pytest.raises(UsageError, match="is not a routing trace"):
        load_trace(tmp_path)


def test_on_real_routing_next_use_lies_between_lru_and_the_bound() -> None:
    trace = load_trace(TRACES / "gpt-oss-20b-short", max_tokens=300)  # two answers
    slots = [trace.shape.total_experts // share for share in (3, 5, 8)]
    hits = {name: [hits_of(name, trace, size) for size in slots] for name in ("lru", "next-use", "belady")}
    for lru, next_use, bound in zip(hits["lru"], hits["next-use"], hits["belady"], strict=True):
        assert lru < next_use < bound
