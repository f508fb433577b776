"""Training of the network that decides what is evicted: repeatable, and used only where it is better."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from moeinf._native import TunedUse, UseEvidence, UseModel
from moeinf.bench.tuning.lessons import HORIZON, lessons_of
from moeinf.bench.tuning.network import UseNetwork
from moeinf.bench.tuning.training import _frequencies, labels_of, train
from moeinf.bench.tuning.tune import Course, divided, tune
from moeinf.errors import StoreError
from moeinf.runtime.policy.tuned import MOST_PARAMETERS, Gain, TunedNetwork, weight_shapes, width_of
from moeinf.traces.trace import Trace
from moeinf.types import Float32Array, IntArray, MoeShape
from tests.oracles.token_memory import SlowTokenMemory

SHAPE = MoeShape(3, 16, 2)


def trace_of(experts: IntArray, request: int = 40, prompt: int = 0) -> Trace:
    offsets = np.arange(0, len(experts) + 1, request)
    if not prompt:
        return Trace("made", SHAPE, experts, offsets)
    passes = [start + more for start in offsets[:-1].tolist() for more in (0, *range(prompt, request))]
    return Trace("made", SHAPE, experts, offsets, np.array([*passes, len(experts)]), np.full(len(offsets) - 1, prompt))


def random_experts(tokens: int, seed: int = 0) -> IntArray:
    return np.random.default_rng(seed).permuted(
        np.tile(np.arange(SHAPE.num_experts), (tokens, SHAPE.num_layers, 1)), axis=2
    )[:, :, : SHAPE.top_k]


def grammar(tokens: int, seed: int = 0) -> IntArray:
    """Words of two tokens: what the first uses tells all that the second does, and nothing else tells anything."""
    rng = np.random.default_rng(seed)
    words = random_experts(2 * 40, seed=1)
    chosen = rng.integers(40, size=tokens // 2)
    return np.stack([words[2 * chosen], words[2 * chosen + 1]], 1).reshape(tokens, SHAPE.num_layers, SHAPE.top_k)


def quiet(what: str, done: int, whole: int) -> None:
    pass


def drawn_weights(shape: MoeShape, seed: int = 0) -> dict[str, Float32Array]:
    rng = np.random.default_rng(seed)
    return {name: (0.3 * rng.standard_normal(each)).astype(np.float32) for name, each in weight_shapes(shape).items()}


def network_of(weights: dict[str, Float32Array], shape: MoeShape = SHAPE) -> TunedNetwork:
    return TunedNetwork("abc", shape, weights, Gain((10, 50), (40.0, 70.0), (42.5, 70.0), 9, 800))


def test_memory_finds_what_its_definition_finds() -> None:
    experts = grammar(400)
    fast, slow = UseEvidence(SHAPE.num_layers, SHAPE.num_experts, SHAPE.top_k), SlowTokenMemory(3, 16, 2)
    start = 0
    for tokens in [1, 1, 1, 9, *[1] * 120, 30, *[1] * 200]:
        for layer in range(SHAPE.num_layers):
            ids = np.ascontiguousarray(experts[start : start + tokens, layer])
            fast.observe(layer, ids)
            np.testing.assert_allclose(np.exp(fast.rows[2:]) - 0.02, slow.observe(layer, ids), atol=2e-4)
        start += tokens


@pytest.mark.parametrize("seed", range(4))
def test_what_is_told_from_the_middle_of_a_pass_is_of_that_pass(seed: int) -> None:
    """Layers are left out in which every expert is there; a prompt ends so, and a token begins so."""
    rng, experts = np.random.default_rng(seed), grammar(900, seed)
    fast, slow = UseEvidence(SHAPE.num_layers, SHAPE.num_experts, SHAPE.top_k), SlowTokenMemory(3, 16, 2)
    start, told = 0, False
    for _ in range(120):
        tokens = int(rng.choice([1, 1, 1, 7]))
        for layer in range(SHAPE.num_layers):
            left_out, ids = told, np.ascontiguousarray(experts[start : start + tokens, layer])
            told = bool(rng.random() < 0.8)
            if not told:
                continue
            if not left_out:
                fast.restart()
                slow.restart()
            fast.observe(layer, ids)
            np.testing.assert_allclose(np.exp(fast.rows[2:]) - 0.02, slow.observe(layer, ids), atol=2e-4)
            assert np.isfinite(fast.rows).all()
        start += tokens


def test_another_number_of_tokens_is_another_pass_whether_or_not_that_is_said() -> None:
    """A layer behind the last one, of one token where that had 300: the memory of the pass has no such token."""
    use = TunedUse(3, 16, 2, width_of(SHAPE), **drawn_weights(SHAPE))
    evidence, experts = UseEvidence(3, 16, 2), grammar(600)
    for each in (use, evidence):
        each.observe(0, np.ascontiguousarray(experts[:300, 0]))
        for more in range(20):
            each.observe(1, np.ascontiguousarray(experts[300 + more : 301 + more, 1]))
            each.observe(2, np.ascontiguousarray(experts[: 2 + more, 2]))
    assert np.isfinite(use.wait).all() and (use.wait >= 0).all() and np.isfinite(evidence.rows).all()


def test_left_out_routings_teach_nothing_of_those_that_follow() -> None:
    """What a layer used before a gap says nothing of what it uses behind it: the rates alone are kept."""
    experts, told, restarted = grammar(200), UseModel(3, 16, 2), UseModel(3, 16, 2)
    for token in range(100):
        for layer in range(SHAPE.num_layers):
            for model in (told, restarted):
                model.observe(layer, experts[token : token + 1, layer])
    before = restarted.no_use.copy()
    restarted.restart()
    assert (restarted.no_use == before).all()
    for model in (told, restarted):
        model.observe(1, experts[150:151, 1])
    assert (told.no_use[1] != restarted.no_use[1]).any()
    assert (told.no_use[[0, 2]] == restarted.no_use[[0, 2]]).all()


@pytest.mark.parametrize("weight", [3e38, -2e4, np.inf, np.nan])
def test_weights_whose_products_overflow_are_refused(weight: float) -> None:
    weights = drawn_weights(SHAPE)
    for name, array in weights.items():
        large = {**weights, name: np.full_like(array, weight)}
        with pytest.raises(ValueError, match="larger than any can be"):
            TunedUse(3, 16, 2, width_of(SHAPE), **large)
        with pytest.raises(StoreError, match="damaged"):
            TunedNetwork.loads(network_of(large).dumps(), "abc", SHAPE)


def test_the_largest_weights_that_are_taken_give_finite_scores() -> None:
    weights = {name: np.full_like(array, 1e4) for name, array in drawn_weights(SHAPE).items()}
    use = TunedUse(3, 16, 2, width_of(SHAPE), **weights)
    for token in range(50):
        for layer in range(SHAPE.num_layers):
            use.observe(layer, grammar(50)[token : token + 1, layer])
    assert np.isfinite(use.wait).all() and np.isfinite(use.no_use).all()


def test_native_network_answers_as_the_trained_one() -> None:
    trace = trace_of(grammar(300))
    lessons = lessons_of(trace, lambda done, whole: None)
    weights = drawn_weights(SHAPE)
    network = UseNetwork(SHAPE, torch.Generator())
    network.load_state_dict({name: torch.from_numpy(each) for name, each in weights.items()})
    network.eval()
    use = TunedUse(3, 16, 2, width_of(SHAPE), **weights)
    used = lessons.used()
    frequency = torch.from_numpy(_frequencies(used)[1])
    evidence = torch.from_numpy(lessons.evidence[128:256].astype(np.float32))
    with torch.no_grad():
        logits = network(torch.from_numpy(used[127:256]), frequency, evidence).double().numpy()
    next_use, soon = 1 / (1 + np.exp(-logits[:, :, 0].clip(-13, 13))), 1 / (1 + np.exp(-logits[:, :, 1].clip(-13, 13)))
    wait = (1 - next_use) / (1 - (1 - soon) ** (1 / HORIZON))
    for token in range(256):
        for layer in range(SHAPE.num_layers):
            use.observe(layer, trace.experts[token : token + 1, layer])
        if token >= 128:
            np.testing.assert_allclose(use.no_use, 1 - next_use[:, token - 128], atol=5e-3)
            np.testing.assert_allclose(use.wait, wait[:, token - 128], rtol=5e-2, atol=1e-3)


def test_lessons_count_only_where_single_tokens_follow() -> None:
    lessons = lessons_of(trace_of(random_experts(80), request=20, prompt=8), lambda done, whole: None)
    one = [True] * (12 + 1 - HORIZON) + [False] * HORIZON
    assert len(lessons.ids) == 4 * 13 and lessons.counts.tolist() == one * 4
    np.testing.assert_array_equal(lessons.ids[13], trace_of(random_experts(80)).experts[27])


def test_labels_say_what_the_next_tokens_use() -> None:
    used = np.zeros((7, 1, 8), np.float32)
    used[np.arange(7), 0, np.arange(7)] = 1
    labels = labels_of(used, 1, 7)
    assert [np.flatnonzero(row).tolist() for row in labels[:, 0, 0]] == [[2], [3], [4], [5], [6], []]
    assert np.flatnonzero(labels[0, 0, 1]).tolist() == [2, 3, 4, 5] and not labels[5, 0, 1].any()


def test_training_repeats_itself_for_a_seed() -> None:
    lessons = lessons_of(trace_of(grammar(400)), lambda done, whole: None)
    first, again, other = (train(lessons, 1, seed, lambda done, whole: None) for seed in (3, 3, 4))
    assert all((first[name] == again[name]).all() for name in first)
    assert (first["token"] != other["token"]).any()


def test_a_pattern_is_learnt_and_switched_on() -> None:
    network = tune(trace_of(grammar(4000), prompt=8), "abc", Course(rounds=20), quiet)
    assert network.gain.better and max(network.gain.points) > 1
    assert network.gain.requests == 25 and network.gain.tokens == 1000


def test_random_routing_is_not_learnt_and_stays_off() -> None:
    network = tune(trace_of(random_experts(1200)), "abc", Course(), quiet)
    assert not network.gain.better


def test_the_later_requests_are_whole_and_have_a_quarter() -> None:
    trace = trace_of(random_experts(400), prompt=8)
    earlier, later = divided(trace)
    assert (earlier.num_tokens, later.num_tokens) == (280, 120)
    np.testing.assert_array_equal(np.concatenate([earlier.experts, later.experts]), trace.experts)
    assert later.passes is not None and later.passes[:3].tolist() == [0, 8, 9] and later.passes[-1] == 120


@pytest.mark.parametrize(("tuned", "better"), [((41, 71), True), ((45, 69.9), False), ((40.1, 70.1), False)])
def test_it_is_on_where_it_wins_on_average_and_loses_nowhere(tuned: tuple[float, float], better: bool) -> None:
    assert Gain((10, 50), (40.0, 70.0), tuned, 9, 800).better is better


def test_a_file_comes_back_as_it_was_written() -> None:
    network = network_of(drawn_weights(SHAPE))
    again = TunedNetwork.loads(network.dumps(), "abc", SHAPE)
    assert again.gain == network.gain and again.shape == SHAPE
    assert all((again.weights[name] == each).all() for name, each in network.weights.items())


def test_damage_and_other_models_are_refused_in_one_line() -> None:
    weights = drawn_weights(SHAPE)
    data = network_of(weights).dumps()
    nan = network_of({**weights, "bias": np.full_like(weights["bias"], np.nan)}).dumps()
    rng = np.random.default_rng(0)
    for spoiled in (
        b"",
        data[:-100],
        data[: len(data) // 2],
        nan,
        *(flipped(data, int(at)) for at in rng.integers(2000, len(data) - 3000, 5)),
    ):
        with pytest.raises(StoreError, match="damaged") as raised:
            TunedNetwork.loads(spoiled, "abc", SHAPE)
        assert "\n" not in str(raised.value)
    for name, shape in (("abd", SHAPE), ("abc", replace(SHAPE, top_k=3)), ("abc", MoeShape(4, 16, 2))):
        with pytest.raises(StoreError, match="another model"):
            TunedNetwork.loads(data, name, shape)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]


@pytest.mark.parametrize(
    "shape", [MoeShape(26, 64, 6), MoeShape(48, 128, 8), MoeShape(60, 512, 10), MoeShape(94, 128, 8)]
)
def test_networks_keep_to_their_size(shape: MoeShape) -> None:
    sizes = sum(int(np.prod(each)) for each in weight_shapes(shape).values())
    assert MOST_PARAMETERS * 0.5 < sizes + 0 <= MOST_PARAMETERS or width_of(shape) == 128
