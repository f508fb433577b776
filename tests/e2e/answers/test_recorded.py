"""A recording holds what ran, wherever experts lie and however requests end, and changes no token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moeinf.config import RuntimeConfig
from moeinf.engine.completion import Hooks
from moeinf.engine.gpu import GpuRunner
from moeinf.engine.model import Model
from moeinf.errors import ExpertReadError, UsageError
from moeinf.runtime.experts import StreamedExperts
from moeinf.runtime.policy.lookahead import LookAheadPredictor
from moeinf.runtime.policy.policy_trace import RequestRecorder
from moeinf.store.library import StoredModel
from moeinf.traces.folder import request_files
from moeinf.traces.trace import Trace, load_trace, visits
from moeinf.types import Phase, Routing
from tests.support.configs.switch_transformers import SWITCH
from tests.support.gpu.emulated_gpu import in_fours, opened
from tests.support.pairs.stored_translators import TEXT, Stored

PROMPT = "Once upon a time, in a village by the sea, there was a fisherman who said:"
NUM_TOKENS = 12


class Seen:
    """What others than the recorder were told: the phases and routings, and on the CPU the weights and the guesses."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.visits: list[tuple[Phase | None, int, list[list[int]]]] = []
        self.weights: list[list[list[float]]] = []
        self.guesses: dict[tuple[int, int], tuple[Any, Any]] = {}  # by the number of the visit before, and layer
        self._phase: Phase | None = None
        observe, begin = RequestRecorder.observe, RequestRecorder.begin_of
        run, expect = StreamedExperts.run, LookAheadPredictor.expect

        def observed(recorder: RequestRecorder, layer: int, ids: Any) -> None:
            self.visits.append((self._phase, layer, ids.tolist()))
            self._phase = None
            observe(recorder, layer, ids)

        def begun(recorder: RequestRecorder, name: object, phase: Phase) -> None:
            self._phase = phase
            begin(recorder, name, phase)

        def ran(experts: StreamedExperts, layer: int, hidden: Any, routing: Routing, out: Any) -> None:
            self.weights.append(routing.weights.tolist())
            run(experts, layer, hidden, routing, out)

        def expected(predictor: LookAheadPredictor, layer: int, ids: Any, weights: Any) -> None:
            self.guesses[len(self.visits), layer] = ids.tolist(), weights.tolist()
            expect(predictor, layer, ids, weights)

        patch.setattr(RequestRecorder, "observe", observed)
        patch.setattr(RequestRecorder, "begin_of", begun)
        patch.setattr(StreamedExperts, "run", ran)
        patch.setattr(LookAheadPredictor, "expect", expected)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


def recorded_visits(trace: Trace) -> list[tuple[Phase | None, int, list[list[int]]]]:
    return [(begins, layer, ids.tolist()) for begins, layer, ids in visits(trace)]


def answer(model: Model, prompt: str = PROMPT, **options: Any) -> list[int]:
    asked = {"temperature": 0.0, "num_predict": NUM_TOKENS, "stop": ()} | options
    return model.generate(prompt, model.params(**asked)).token_ids


@pytest.fixture(scope="module")
def wanted(demo: StoredModel) -> list[int]:
    with Model(demo, RuntimeConfig.of(device="cpu")) as model:
        return answer(model)


@pytest.mark.parametrize(
    "options", [{"expert_cache": size} for size in ("100%", "33%", "8%")] + [{"prefetch": False}], ids=str
)
def test_what_is_recorded_is_what_ran(
    demo: StoredModel, wanted: list[int], seen: Seen, tmp_path: Path, options: dict[str, Any]
) -> None:
    with Model(demo, RuntimeConfig.of(device="cpu", prefill_chunk=8, trace=str(tmp_path), **options)) as model:
        assert answer(model) == wanted
        assert answer(model, "Another one:") != wanted
        fits = model.tier.all_resident
    trace = load_trace(tmp_path)
    assert recorded_visits(trace) == seen.visits
    assert trace.model == demo.name and trace.shape == demo.manifest.moe
    assert trace.num_requests == 2 and trace.prompt_tokens is not None and trace.passes is not None
    assert (np.diff(trace.offsets) - trace.prompt_tokens == NUM_TOKENS - 1).all()
    assert trace.weights is not None
    rows = [(layer, first, last) for first, last in zip(trace.passes, trace.passes[1:]) for layer in range(6)]  # noqa: B905
    for (layer, first, last), weights in zip(rows, seen.weights, strict=True):
        assert trace.weights[first:last, layer].tolist() == weights
    assert fits == (not seen.guesses) == (trace.guesses is None) or options == {"prefetch": False}
    for (before, layer), (ids, weights) in seen.guesses.items():
        _, first, last = rows[before]
        assert trace.guesses is not None and trace.guess_weights is not None
        assert trace.guesses[first:last, layer].tolist() == ids
        assert trace.guess_weights[first:last, layer].tolist() == weights
    if seen.guesses:
        assert trace.guesses is not None and (trace.guesses[:, 0] == -1).all() and (trace.guesses[:, 1:] >= 0).all()


def test_only_tokens_that_were_computed_are_recorded(demo: StoredModel, seen: Seen, tmp_path: Path) -> None:
    with Model(demo, RuntimeConfig.of(device="cpu", trace=str(tmp_path))) as model:
        first = model.generate(PROMPT, model.params(temperature=0.0, num_predict=4, stop=()))
        again = model.generate(PROMPT + first.text + " and", model.params(temperature=0.0, num_predict=4, stop=()))
    trace = load_trace(tmp_path)
    assert again.stats.cached_tokens > 0 and trace.prompt_tokens is not None
    assert trace.prompt_tokens[1] == again.stats.prompt_tokens - again.stats.cached_tokens
    assert recorded_visits(trace) == seen.visits


def test_a_request_that_was_stopped_is_recorded_as_far_as_it_came(demo: StoredModel, tmp_path: Path) -> None:
    with Model(demo, RuntimeConfig.of(device="cpu", trace=str(tmp_path))) as model:
        params = model.params(temperature=0.0, num_predict=20, stop=())
        calls = iter(range(1000))
        model.generate(PROMPT, params, hooks=Hooks(lambda: next(calls) > 2))
        assert not request_files(tmp_path), "stopped within its prompt"
        calls = iter(range(1000))
        assert model.generate(PROMPT, params, hooks=Hooks(lambda: next(calls) > 45)).finish_reason == "interrupted"
        steps = len(model.last.stats.token_s) if model.last else 0
        stream = model.stream(PROMPT + " Well", params)
        next(stream)
        stream.close()  # type: ignore[attr-defined]
    trace = load_trace(tmp_path)
    assert trace.prompt_tokens is not None and trace.num_requests == 2 and steps > 2
    assert trace.offsets[1] == trace.prompt_tokens[0] + steps


def test_a_request_that_failed_is_recorded_as_far_as_it_came(
    demo: StoredModel, wanted: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls, run = iter(range(1000)), StreamedExperts.run

    def fails_once(experts: StreamedExperts, layer: int, hidden: Any, routing: Routing, out: Any) -> None:
        if next(calls) == 6 * 5 + 2:
            raise ExpertReadError("the disk has gone")
        run(experts, layer, hidden, routing, out)

    monkeypatch.setattr(StreamedExperts, "run", fails_once)
    with Model(demo, RuntimeConfig.of(device="cpu", trace=str(tmp_path))) as model:
        with pytest.raises(ExpertReadError):
            answer(model)
        assert answer(model) == wanted
    trace = load_trace(tmp_path)
    assert trace.num_requests == 2 and trace.prompt_tokens is not None
    assert trace.offsets[1] == trace.prompt_tokens[0] + 4


def test_another_models_folder_is_refused_before_anything_is_read(demo: StoredModel, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds other files"):
        Model(demo, RuntimeConfig.of(trace=str(tmp_path)))


@pytest.mark.parametrize(
    ("host", "cache"), [(None, "100%"), (None, "30%"), (20, "30%")], ids=["resident", "device-chooses", "host-chooses"]
)
@pytest.mark.parametrize("options", [{}, {"cpu_experts": True}], ids=str)
def test_a_gpu_records_what_the_cpu_does(
    demo: StoredModel,
    wanted: list[int],
    seen: Seen,
    tmp_path: Path,
    host: int | None,
    cache: str,
    options: dict[str, Any],
) -> None:
    with opened(demo, host=host, expert_cache=cache, trace=str(tmp_path / "gpu"), **options) as model:
        answers = [answer(model), answer(model, "Another one:")]
    trace = load_trace(tmp_path / "gpu")
    assert recorded_visits(trace) == seen.visits
    with Model(demo, RuntimeConfig.of(device="cpu", prefill_chunk=16, trace=str(tmp_path / "cpu"))) as model:
        assert [answer(model), answer(model, "Another one:")] == answers
    other = load_trace(tmp_path / "cpu")
    assert answers[0] == wanted and trace.weights is not None and other.weights is not None
    same = (trace.experts == other.experts).all(axis=2)
    assert same.mean() > 0.95, "rounding differs"
    assert np.abs(trace.weights - other.weights)[same].mean() < 0.005 < trace.weights.std()
    if host is not None:
        assert trace.guesses is not None
        assert (trace.guesses[:, 1:] == trace.experts[:, 1:]).mean() > 0.2


def test_a_step_that_is_repeated_for_want_of_memory_is_recorded_once(
    demo: StoredModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(demo, in_fours(demo), host=20, expert_cache="60%", trace=str(tmp_path / "a")) as model:
        run = model.runner
        assert isinstance(run, GpuRunner)
        calls, experts_run = iter(range(10_000)), type(run.network._experts).run

        def scarce(experts: Any, *args: Any) -> None:
            if next(calls) in (3, 9, 15):
                raise torch.OutOfMemoryError("no more")
            experts_run(experts, *args)

        monkeypatch.setattr(type(run.network._experts), "run", scarce)
        before, found = run.tier.num_slots, answer(model)
        assert run.tier.num_slots < before
    monkeypatch.undo()
    with opened(demo, host=20, expert_cache="60%", trace=str(tmp_path / "b")) as model:
        assert answer(model) == found
    scarcely, plainly = load_trace(tmp_path / "a"), load_trace(tmp_path / "b")
    assert (scarcely.experts == plainly.experts).all()
    assert np.array_equal(scarcely.passes, plainly.passes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def switch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoredModel]:
    """Some of a source's tokens overflow an expert."""
    asked = {"decoder_start_token_id": 0, "eos_token_id": 1, "max_length": 14}
    yield Stored(SWITCH | {"expert_capacity": 2}, tmp_path_factory.mktemp("switch"), asked).stored


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("where", ["cpu", "gpu"])
def test_of_an_encoder_decoder_each_token_has_the_layers_that_it_visits(
    switch: StoredModel, seen: Seen, tmp_path: Path, beams: int, where: str
) -> None:
    options: dict[str, Any] = {"expert_cache": "40%", "num_beams": beams}
    with Model(switch, RuntimeConfig.of(threads=1, **options)) as model:
        plain = model.generate(TEXT, model.params(stop=("nothing",))).token_ids
    seen.visits.clear()
    with (
        Model(switch, RuntimeConfig.of(device="cpu", threads=1, trace=str(tmp_path), **options))
        if where == "cpu"
        else opened(switch, trace=str(tmp_path), **options)
    ) as model:
        assert model.generate(TEXT, model.params(stop=("nothing",))).token_ids == plain
    trace = load_trace(tmp_path)
    assert recorded_visits(trace) == seen.visits
    assert trace.passes is not None and trace.prompt_tokens is not None
    lengths = np.diff(trace.passes).tolist()
    assert lengths[:2] == [7, 1] and set(lengths[2:]) <= {beams} and trace.prompt_tokens.tolist() == [8]
    assert [begins for begins, _, _ in recorded_visits(trace) if begins] == ["encode", "prefill", "decode"]
