"""`bench --routing`: a model routed as a trace says, with everything else as it runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeinf.bench.live_bench import Workload, run_bench
from moeinf.config import RuntimeConfig
from moeinf.config.guess_options import GuessOptions
from moeinf.engine.model import Model
from moeinf.errors import UsageError
from moeinf.runtime.experts import StreamedExperts
from moeinf.runtime.policy.lookahead import LookAheadPredictor
from moeinf.runtime.prefetch import Prefetcher
from moeinf.store.library import StoredModel
from moeinf.traces.guesses import DrawnGuesses, LookAheadQuality, guesses_of
from moeinf.traces.replayed import RecordedRouting
from moeinf.traces.trace import Trace, dumps
from moeinf.types import Float32Array, IntArray, MoeShape, Routing

CONFIG: dict[str, Any] = {"expert_cache": "40%", "prefill_chunk": 8}
PROMPT = list(range(300, 320))  # three chunks
DECODED = [7, 400, 12, 90]


def drawn_trace(shape: MoeShape, num_tokens: int, guesses: bool = False) -> Trace:
    """A trace of distinct experts with weights, and of guesses that are others."""
    rng = np.random.default_rng(3)
    rows = (num_tokens, shape.num_layers, shape.num_experts)
    ids, guessed = (np.argsort(rng.random(rows), axis=2)[:, :, : shape.top_k] for _ in range(2))
    weights, sure = (rng.random(ids.shape, np.float32) for _ in range(2))
    trace = Trace("drawn", shape, ids, np.array([0, num_tokens]), weights=weights)
    return replace(trace, guesses=guessed, guess_weights=sure) if guesses else trace


def spied_routings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, IntArray, Float32Array]]:
    """What the experts are asked for, from now on: layer, ids and weights of every visit."""
    seen, run = [], StreamedExperts.run

    def noting(self: StreamedExperts, layer: int, hidden: Float32Array, routing: Routing, out: Float32Array) -> None:
        seen.append((layer, routing.ids.copy(), routing.weights.copy()))
        run(self, layer, hidden, routing, out)

    monkeypatch.setattr(StreamedExperts, "run", noting)
    return seen


def logits_of(model: Model) -> list[Float32Array]:
    return [model.runner.forward(tokens, lambda: None).copy() for tokens in (PROMPT, *([token] for token in DECODED))]


def as_trace(shape: MoeShape, seen: list[tuple[int, IntArray, Float32Array]]) -> Trace:
    """Visits of whole passes, put together token by token."""
    passes = [seen[at : at + shape.num_layers] for at in range(0, len(seen), shape.num_layers)]
    assert all([layer for layer, _, _ in one] == list(range(shape.num_layers)) for one in passes)
    ids, weights = (np.concatenate([np.stack([visit[n] for visit in one], 1) for one in passes]) for n in (1, 2))
    return Trace("seen", shape, ids, np.array([0, len(ids)]), weights=weights)


def test_the_experts_are_given_the_trace_whatever_the_passes(
    demo: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = demo.manifest.moe
    trace, recorded = drawn_trace(shape, 60), RecordedRouting(drawn_trace(shape, 60))
    seen = spied_routings(monkeypatch)
    with Model(demo, RuntimeConfig.of(**CONFIG, predictor="cross-layer"), recorded=recorded) as model:
        for start in (0, 30):
            recorded.seek(start)
            seen.clear()
            model.replay(PROMPT, DECODED)
            given = as_trace(shape, seen)
            rows = slice(start, start + given.num_tokens)
            assert given.num_tokens >= len(PROMPT) + len(DECODED)
            assert given.weights is not None and trace.weights is not None
            assert np.array_equal(given.experts, trace.experts[rows])
            assert np.array_equal(given.weights, trace.weights[rows])


def test_its_own_routing_gives_its_own_logits_and_another_s_does_not(
    demo: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RuntimeConfig.of(**CONFIG, prefetch=False)
    seen = spied_routings(monkeypatch)
    with Model(demo, config) as model:
        wanted = logits_of(model)
    trace = as_trace(demo.manifest.moe, seen)
    for own, shifted in ((True, trace), (False, replace(trace, experts=trace.experts[::-1]))):
        with Model(demo, config, recorded=RecordedRouting(shifted)) as model:
            assert all(map(np.array_equal, logits_of(model), wanted)) == own


def test_guesses_are_those_of_the_trace(demo: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = demo.manifest.moe
    trace = drawn_trace(shape, len(PROMPT) + len(DECODED), guesses=True)
    told: dict[int, list[IntArray]] = {layer: [] for layer in range(1, shape.num_layers)}
    monkeypatch.setattr(Prefetcher, "wants_expectations", True)  # of tokens, too, that go without prefetch
    monkeypatch.setattr(LookAheadPredictor, "expect", lambda self, layer, ids, weights: told[layer].append(ids.copy()))
    recorded = RecordedRouting(trace, guesses_of(trace, None))
    with Model(demo, RuntimeConfig.of(**CONFIG, predictor="look-ahead"), recorded=recorded) as model:
        logits_of(model)
    assert trace.guesses is not None
    for layer, ids in told.items():
        assert np.array_equal(np.concatenate(ids), trace.guesses[:, layer])


def test_guesses_that_are_drawn_are_those_of_the_simulator() -> None:
    """Drawn before the first token, for as many tokens at once as a pass has; over more than one block."""
    shape = MoeShape(3, 16, 2)
    trace = drawn_trace(shape, 300)
    quality = LookAheadQuality(0.7, 0.6, 2.0)
    recorded = RecordedRouting(trace, DrawnGuesses(trace, quality, seed=4))
    for first, last in ((0, 5), (120, 140), (299, 300)):
        for layer in (1, 2):
            wanted = DrawnGuesses(trace, quality, seed=4).at(first, last, layer)
            recorded.seek(first)
            guess = recorded.guess(layer, last - first)
            assert wanted is not None and guess is not None
            likely, drawn = (np.zeros((last - first, shape.num_experts)) for _ in range(2))
            rows = np.arange(last - first)[:, None]
            np.add.at(likely, (rows, wanted.ids), wanted.weights)
            np.add.at(drawn, (rows, guess.ids), guess.weights)
            assert np.array_equal(likely, drawn) and likely.any()


def saved(folder: Path, trace: Trace) -> Path:
    folder.mkdir()
    (folder / "routing.npz").write_bytes(dumps(trace))
    return folder


def test_a_bench_says_whose_routing_it_was_and_keeps_nothing_of_it(demo: StoredModel, tmp_path: Path) -> None:
    kept = demo.path / "eamc.npz"
    before = kept.read_bytes() if kept.exists() else None
    trace = drawn_trace(demo.manifest.moe, 24)
    workload = Workload(num_prompt=8, num_decode=4, repeats=1, routing=saved(tmp_path / "evenly", trace))
    rows = run_bench(demo, RuntimeConfig.of(expert_cache="40%", prefetch=False), workload)
    assert {row["routing"] for row in rows} == {"evenly"}
    assert all(row["hits"] and row["misses"] for row in rows if row["test"] == "tg4")
    assert (kept.read_bytes() if kept.exists() else None) == before


def test_with_fewer_experts_a_token_than_the_model_has(demo: StoredModel, tmp_path: Path) -> None:
    shape = demo.manifest.moe
    fewer = drawn_trace(replace(shape, top_k=shape.top_k - 1), 12)
    workload = Workload(num_prompt=8, num_decode=4, repeats=0, routing=saved(tmp_path / "fewer", fewer))
    rows = run_bench(demo, RuntimeConfig.of(expert_cache="40%", prefetch=False), workload)
    assert [row["hits"] + row["misses"] for row in rows] == [
        tokens * shape.num_layers * (shape.top_k - 1) for tokens in (8, 4)
    ]


def test_what_cannot_be_replayed_is_refused_in_one_line(demo: StoredModel, tmp_path: Path) -> None:
    shape = demo.manifest.moe
    absent = drawn_trace(shape, 40)
    absent.experts[3, 0] = -1
    folders = {
        "another model": (drawn_trace(replace(shape, num_layers=shape.num_layers - 1), 40), "another model"),
        "more experts": (drawn_trace(replace(shape, top_k=shape.top_k + 1), 40), "another model"),
        "short": (drawn_trace(shape, 20), "has 20 tokens, and -p, -n and -r ask for 24"),
        "encoder": (absent, "with an encoder"),
        "no guesses": (drawn_trace(shape, 40), "no guesses of look-ahead"),
    }
    for name, (trace, fault) in folders.items():
        workload = Workload(num_prompt=8, num_decode=4, repeats=1, routing=saved(tmp_path / name, trace))
        with pytest.raises(UsageError, match=fault):
            run_bench(demo, RuntimeConfig.of(expert_cache="40%", predictor="look-ahead"), workload)
    guess = GuessOptions(lookahead_recall=0.8)
    with pytest.raises(UsageError, match="give --routing"):
        run_bench(demo, RuntimeConfig.of(), Workload(guess=guess))
    drawn = Workload(num_prompt=8, num_decode=4, repeats=1, routing=tmp_path / "no guesses", guess=guess)
    assert run_bench(demo, RuntimeConfig.of(expert_cache="40%", predictor="look-ahead"), drawn)
    with pytest.raises(UsageError, match="no trace in"):
        run_bench(demo, RuntimeConfig.of(), Workload(routing=tmp_path / "nowhere"))
