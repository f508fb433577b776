"""Several cards in one machine: each has experts of its own, and the answer is that of one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from moeinf.engine.memory.device_plan import DEVICE_OVERHEAD_BYTES as OVERHEAD
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.errors import DeviceError, OutOfMemoryError
from moeinf.gpu.cuda import Gpu
from moeinf.gpu.open_gpu import OpenGpu
from moeinf.models.layers.assemble import DecoderFamily
from moeinf.store.library import StoredModel
from tests.support.gpu.emulated_gpu import emulated, in_fours, opened
from tests.support.seeing_models import asking, png, seeing_model

PROMPT = "Once upon a time, in a village by the sea, there was a fisherman who said:"


@contextmanager
def on_cards(
    stored: StoredModel, count: int, monkeypatch: pytest.MonkeyPatch, memory: int = 1 << 40, **options: Any
) -> Iterator[Model]:
    """The model on so many emulated cards, with so many bytes free on each."""
    monkeypatch.setattr(
        "moeinf.engine.devices.find_cuda", lambda name, notice: Gpu(int(name[5:]), name, (9, 0), 0, 0, 0)
    )
    monkeypatch.setattr("moeinf.gpu.open_gpu.open_gpu", lambda gpu: replace(in_fours(stored), free_bytes=memory))
    names = ",".join(f"cuda:{number}" for number in range(count))
    with opened(stored, replace(in_fours(stored), free_bytes=memory), device=names, **options) as model:
        yield model


def too_little(stored: StoredModel, **options: Any) -> int:
    """A byte less than one card has to have for all dense layers, and for the experts of a token."""
    with opened(stored, **options) as model:
        plan, top_k = model.plan, stored.manifest.moe.top_k
        return plan.dense_bytes + plan.kv_bytes + plan.activation_bytes + top_k * plan.slot_bytes + OVERHEAD - 1


def answer(model: Model) -> list[int]:
    result = model.generate(PROMPT, model.params(temperature=0.0, num_predict=12, stop=()))
    for cache, count in (
        (result.stats.prefill_cache, result.stats.prompt_tokens),
        (result.stats.decode_cache, len(result.stats.token_s)),
    ):
        assert cache.activations == count * model.manifest.moe.num_layers * model.manifest.moe.top_k
    model.tier.check_integrity()
    return result.token_ids


def answer_tokens(model: Model) -> list[int]:
    """Where the prompt is not computed again, so that counts say less."""
    return model.generate(PROMPT, model.params(temperature=0.0, num_predict=12, stop=())).token_ids


@pytest.fixture(scope="module")
def wanted(demo: StoredModel) -> list[int]:
    with opened(demo) as model:
        return answer(model)


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (2, {}),  # all experts on the cards
        (2, {"host": 20, "expert_cache": "30%"}),
        (2, {"host": 20, "expert_cache": "30%", "prefetch": False, "prefill_chunk": 1}),
        (2, {"host": 6, "expert_cache": "8%", "policy": "lru", "predictor": "popularity"}),
        (3, {"expert_cache": "20%"}),
    ],
    ids=str,
)
def test_tokens_are_those_of_one_card(
    count: int, options: dict[str, Any], demo: StoredModel, wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_cards(demo, count, monkeypatch, **options) as model:
        assert answer(model) == wanted
        assert answer_tokens(model) == wanted  # a step is recorded now, and repeated


CONTEXT: dict[str, Any] = {"context": 256}  # as it was asked for, it is not shortened


@pytest.mark.parametrize(
    ("count", "options"),
    [(2, {"predictor": "look-ahead"}), (2, {"host": 20, "prefetch": False}), (3, {"host": 20, "prefill_chunk": 5})],
    ids=str,
)
def test_layers_that_one_card_does_not_hold_are_divided(
    count: int, options: dict[str, Any], demo: StoredModel, wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, options = too_little(demo, **CONTEXT, **options), CONTEXT | options
    with (
        pytest.raises(OutOfMemoryError, match="not enough memory on the GPU"),
        opened(demo, replace(in_fours(demo), free_bytes=memory), **options),
    ):
        pass
    with on_cards(demo, count, monkeypatch, memory, **options) as model:
        found = re.findall(r"dense [\d.]+ .B of layers (\d+)-(\d+), KV [\d.]+ .B for 256", model.describe())
        assert len(found) == count
        layers = [layer for first, last in found for layer in range(int(first), int(last) + 1)]
        assert layers == list(range(demo.manifest.info.num_layers))
        assert answer(model) == wanted
        assert answer_tokens(model) == wanted


def test_layers_are_divided_for_a_context_that_one_card_has_no_room_for(
    demo: StoredModel, wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = too_little(demo)
    with on_cards(demo, 2, monkeypatch, memory) as model:
        assert model.plan.context == demo.manifest.info.context_length and "of layers 0-" in model.describe()
        assert answer(model) == wanted


def test_a_card_that_does_not_hold_its_layers_is_named(demo: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    named = pytest.raises(OutOfMemoryError, match="card 1 of 2, for layers 0-0: not enough memory on the GPU")
    with named, on_cards(demo, 2, monkeypatch, OVERHEAD + (1 << 20), **CONTEXT):
        pass


def test_layers_that_share_more_than_a_hidden_state_stay_on_one_card(
    demo: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = too_little(demo, **CONTEXT)
    monkeypatch.setattr(DecoderFamily, "divisible", False)
    refusal = pytest.raises(OutOfMemoryError, match="are not divided among cards: name the one with most memory first")
    with refusal, on_cards(demo, 2, monkeypatch, memory, **CONTEXT):
        pass
    with on_cards(demo, 2, monkeypatch, too_little(demo)) as model:
        assert "of layers" not in model.describe()  # the context is shorter instead


def test_the_line_about_memory_names_the_share_of_each_card_and_hits_are_those_of_all(
    demo: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = demo.manifest.moe.total_experts
    with on_cards(demo, 2, monkeypatch) as model:
        owned = [int(of) for of in re.findall(rf"experts \d+/(\d+) of {total}", model.describe())]
        assert len(owned) == 2 and sum(owned) == total and min(owned) > total // 4
        assert model.tier.num_experts == total
        answer(model)
        assert model.last is not None and model.last.stats.decode_cache.hit_rate == 1
        assert (model.tier.states() == model.tier.states()[0, 0]).all()


def test_when_device_memory_runs_out_every_card_gives_slots_up_and_the_text_is_the_same(
    demo: StoredModel, wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    notices: list[str] = []
    reporting = Reporting(notices.append)
    with on_cards(demo, 2, monkeypatch, reporting=reporting, expert_cache="40%") as model:
        run, failed = model.runner.network.step, list[bool]()

        def forward(*args: Any, **kwargs: Any) -> Any:
            if not failed:
                failed.append(True)
                raise torch.OutOfMemoryError
            return run(*args, **kwargs)

        monkeypatch.setattr(model.runner.network, "step", forward)
        assert answer_tokens(model) == wanted
    assert any("ran out" in notice for notice in notices)


def test_a_card_that_does_not_exist_is_refused_in_one_line_and_the_others_are_closed(
    demo: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[OpenGpu] = []

    def find(name: str, notice: Any) -> Gpu | None:
        if name == "cuda:2":
            raise DeviceError("there is no GPU 2")
        return Gpu(int(name[5:]), name, (9, 0), 0, 0, 0)

    monkeypatch.setattr("moeinf.engine.devices.find_cuda", find)
    monkeypatch.setattr("moeinf.gpu.open_gpu.open_gpu", lambda gpu: emulated())
    monkeypatch.setattr(OpenGpu, "close", lambda self: closed.append(self))
    with pytest.raises(DeviceError, match="no GPU 2"), opened(demo, device="cuda:0,cuda:1,cuda:2"):
        pass
    assert len(closed) == 1


def test_pictures_are_seen_by_cards_that_divide_the_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, messages = seeing_model(tmp_path, "gemma4"), asking("What is this?", png(1), png(2))

    def seen(model: Model) -> list[int]:
        return model.generate(messages, model.params(temperature=0.0, num_predict=8)).token_ids

    with opened(stored, **CONTEXT) as one:
        wanted = seen(one)
    with on_cards(stored, 2, monkeypatch, too_little(stored, **CONTEXT), **CONTEXT) as two:
        assert "of layers 0-" in two.describe()
        assert [seen(two), seen(two)] == [wanted, wanted]
