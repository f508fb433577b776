"""Encoder-decoder models on the GPU path, all of it, on a device in host memory: the tokens are those of the CPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.completion import Hooks
from moeinf.engine.gpu import GpuRunner
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.errors import DeviceError
from moeinf.pull.pull import pull
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.policy.predictors import PREDICTORS
from moeinf.store.library import StoredModel
from moeinf.terminal.stored.show import show_lines
from tests.support.configs.nllb_moe import NLLB
from tests.support.configs.switch_transformers import SWITCH
from tests.support.emulated_device import EmulatedDevice
from tests.support.gpu.emulated_gpu import emulated, in_fours, interpreted, opened
from tests.support.pairs.stored_translators import TEXT, Stored

OTHER = "w9 w9 w3 w77 w21 w22 w68 w9 w41"
LANGUAGES: dict[str, Any] = {"src_lang": "eng_Latn", "tgt_lang": "fra_Latn"}
HOW: dict[str, tuple[str, dict[str, Any]]] = {
    "switch": ("switch_transformers", {}),
    "switch, 3 beams": ("switch_transformers", {"num_beams": 3}),
    "nllb": ("nllb-moe", LANGUAGES | {"num_beams": 1}),
    "nllb, 4 beams": ("nllb-moe", LANGUAGES | {"num_beams": 4}),
}


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return Stored(
        NLLB,
        tmp_path_factory.mktemp("nllb"),
        {"decoder_start_token_id": 2, "eos_token_id": 2, "max_length": 14, "early_stopping": True},
    )


@pytest.fixture(scope="module")
def models(translator: Stored, tmp_path_factory: pytest.TempPathFactory) -> dict[str, StoredModel]:
    """Of the one, some of a source's tokens overflow an expert."""
    switch = Stored(
        SWITCH | {"expert_capacity": 2},
        tmp_path_factory.mktemp("switch"),
        {"decoder_start_token_id": 0, "eos_token_id": 1, "max_length": 14},
    )
    return {"switch_transformers": switch.stored, "nllb-moe": translator.stored}


@pytest.fixture(scope="module", params=HOW)
def case(
    request: pytest.FixtureRequest, models: dict[str, StoredModel]
) -> tuple[StoredModel, dict[str, Any], list[list[int]]]:
    """A model, how it is run, and what it answers on the CPU."""
    name, options = HOW[request.param]
    with Model(models[name], RuntimeConfig.of(threads=1, **options)) as model:
        return models[name], options, answers(model)


def answers(model: Model) -> list[list[int]]:
    """To two sources, and to the first again."""
    found = [model.generate(text, model.params(stop=("nothing",))).token_ids for text in (TEXT, OTHER, TEXT)]
    model.tier.check_integrity()
    return found


@pytest.mark.parametrize(("slots", "host"), [("7%", 4), ("7%", None), ("30%", 14), ("75%", 4), ("100%", None)])
def test_tokens_are_those_of_the_cpu_for_every_number_of_slots(case: Any, slots: str, host: int | None) -> None:
    stored, options, wanted = case
    assert all(len(answer) > 3 for answer in wanted) and wanted[0] != wanted[1], "the comparison means something"
    with opened(stored, host=host, expert_cache=slots, **options) as model:
        assert isinstance(model.runner, GpuRunner)
        assert answers(model) == wanted


@pytest.mark.parametrize("how", [{"prefetch": False}, {"predictor": list(PREDICTORS)[-1]}], ids=str)
def test_tokens_are_the_same_with_and_without_prefetch(case: Any, how: dict[str, Any]) -> None:
    stored, options, wanted = case
    with opened(stored, host=14, expert_cache="30%", **options, **how) as model:
        assert answers(model) == wanted


@pytest.mark.parametrize("host", [14, None])
def test_when_device_memory_runs_out_slots_are_given_up_and_the_text_is_the_same(
    case: Any, host: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a source, at the start of an answer, and while beams are moved or a step is recorded or repeated."""
    stored, options, wanted = case
    notices: list[str] = []
    reporting = Reporting(notices.append)
    with opened(stored, in_fours(stored), host=host, expert_cache="100%", reporting=reporting, **options) as model:
        run = model.runner
        assert isinstance(run, GpuRunner)
        calls, experts_run = [0], type(run.network._experts).run

        def scarce(experts: Any, *args: Any) -> None:
            calls[0] += 1
            if calls[0] in (2, 3, 9, 12, 17):
                raise torch.OutOfMemoryError("no more")
            experts_run(experts, *args)

        monkeypatch.setattr(type(run.network._experts), "run", scarce)
        before = run.tier.num_slots
        assert answers(model) == wanted
        assert sum("memory ran out" in notice for notice in notices) == 5
        assert run.tier.num_slots == before - 20


def test_a_step_is_recorded_once_and_then_repeated(case: Any) -> None:
    stored, options, _ = case
    gpu = emulated()
    with opened(stored, gpu, host=14, expert_cache="30%", **options) as model:
        model.generate(TEXT, model.params(stop=("nothing",)))
        assert isinstance(gpu.device, EmulatedDevice)
        first = gpu.device.num_captures
        in_decoder = stored.manifest.moe.num_layers // 2
        assert first == (1 if options.get("num_beams", 1) > 1 else 2) * in_decoder + 1
        if options.get("num_beams") != 3:  # there the token that begins an answer is a step of one beam
            model.generate(OTHER, model.params(stop=("nothing",)))
            assert gpu.device.num_captures == first


def test_a_token_is_one_graph_where_the_device_reaches_every_expert(models: dict[str, StoredModel]) -> None:
    gpu = emulated()
    with opened(models["nllb-moe"], gpu, expert_cache="30%", **LANGUAGES, num_beams=1) as model:
        seen: list[int] = []
        observe = model.generator.listeners.recorder.observe
        model.generator.listeners.recorder.observe = lambda layer, ids: (seen.append(layer), observe(layer, ids))  # type: ignore
        answer = model.generate(TEXT, model.params(stop=("nothing",)))
        assert isinstance(gpu.device, EmulatedDevice)
        assert gpu.device.num_captures == 1
        layers = model.manifest.moe.num_layers
        steps = len(answer.stats.token_s)
        assert seen == [*range(layers), *[*range(layers // 2, layers)] * steps], "a token visits the decoder alone"
        cache = answer.stats.decode_cache
        assert cache.hits + cache.misses == steps * layers // 2 * model.manifest.moe.top_k


def test_encoder_prefill_and_decode_are_kept_apart(case: Any) -> None:
    stored, options, _ = case
    path = stored.path / "eamc.npz"
    path.unlink(missing_ok=True)
    with opened(stored, expert_cache="30%", **options) as model:
        model.generate(TEXT, model.params())
    rows = ActivationCollection.loads(path.read_bytes(), stored.manifest.moe).rows
    used = [[bool(layer.any()) for layer in matrix] for matrix in rows[:3]]
    assert used == [[True, True, False, False], [False, False, True, True], [False, False, True, True]]


def test_tritons_kernels_give_the_logits_of_their_twins(models: dict[str, StoredModel]) -> None:
    """In the interpreter: a source, the token that begins an answer, and a step of two beams."""
    pytest.importorskip("triton", reason="triton is not installed")
    found = []
    for gpu in (interpreted(), emulated()):
        with opened(models["switch_transformers"], gpu, expert_cache="50%", num_beams=2) as model:
            run = model.runner
            run.encode([5, 17, 3, 88, 41, 33, 2, 60, 9, 75], lambda: None)
            first = run.forward([0], lambda: None)
            run.keep_beams([0, 0])
            found.append([*first, *run.forward([9, 21], lambda: None)])
    assert all(abs(ours - theirs).max() < 1e-4 for ours, theirs in zip(*found, strict=True))


@pytest.mark.parametrize(("quant", "num_beams"), [("q8_0", 1), ("mxfp4", 3)])
def test_a_quantised_translator_answers_the_same_for_every_number_of_slots(
    translator: Stored, tmp_path: Path, quant: str, num_beams: int
) -> None:
    stored = pull(str(translator.checkpoint), PullOptions(name="tiny", quant=quant), home=tmp_path)
    found = []
    for slots, host in (("100%", None), ("10%", None), ("30%", 6)):
        with opened(stored, host=host, expert_cache=slots, num_beams=num_beams, **LANGUAGES) as model:
            found.append(answers(model))
    assert found[0][0] and found[1] == found[2] == found[0]


def test_with_a_share_computed_by_the_cpu_logits_are_the_same_but_for_rounding(
    models: dict[str, StoredModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moeinf.runtime.gpu.cpu_share.CpuShare.share", lambda self, missing: (missing + 1) // 2)
    found = []
    for shared in (False, True):
        with opened(models["nllb-moe"], host=14, expert_cache="20%", cpu_experts=shared, num_beams=1, **LANGUAGES) as m:
            run = m.runner
            run.encode([5, 17, 3, 88, 41], lambda: None)
            found.append([run.forward([token], lambda: None)[-1] for token in (2, 33, 41, 9, 9, 53, 17)])
    assert all(abs(ours - theirs).max() < 1e-4 for ours, theirs in zip(*found, strict=True))


def test_an_interrupted_answer_leaves_a_sound_model(case: Any) -> None:
    stored, options, wanted = case
    with opened(stored, host=14, expert_cache="30%", **options) as model:
        for stop_at in (1, 3, 6, 8):
            calls = iter(range(1000))
            cut = model.generate(OTHER, model.params(), hooks=Hooks(lambda: next(calls) > stop_at))  # noqa: B023
            assert cut.finish_reason == "interrupted"
        assert answers(model) == wanted


def test_keys_and_values_of_every_beam_are_planned_for(models: dict[str, StoredModel]) -> None:
    plans = []
    for beams in (1, 4):
        with opened(models["nllb-moe"], **LANGUAGES, num_beams=beams) as model:
            plan, cache = model.plan, model.runner.cache
            memories = {
                id(m): m for state in cache.states for m in (state._past, state._source, state._spare) if m is not None
            }
            assert plan.kv_bytes == sum(m.numel() * m.element_size() for m in memories.values())
            plans.append(plan.kv_bytes)
    assert plans[1] == plans[0] * (1 + 4 + 4 / 4) / 2, "the source, four beams, and one of four layers to move them"


def test_show_says_what_a_gpu_needs(models: dict[str, StoredModel]) -> None:
    assert re.search(r"on a GPU +\S+ \w+ VRAM", "\n".join(show_lines(models["nllb-moe"])))


def test_such_a_model_asks_for_the_gpu_as_every_other(
    models: dict[str, StoredModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(device: str, notice: Any) -> None:
        raise DeviceError(f"{device} was asked for")

    monkeypatch.setattr("moeinf.engine.devices.find_cuda", none)
    for device in ("auto", "cuda"):
        with pytest.raises(DeviceError, match=f"{device} was asked for"):
            Model(models["switch_transformers"], RuntimeConfig.of(device=device))
