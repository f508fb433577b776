"""Whole runs on the GPU: the driver's copies, captured graphs, memory that runs out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moeinf._native import Arena, Copier, CudaDriver
from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.gpu import GpuRunner
from moeinf.engine.model import Model
from moeinf.gpu.cuda import find_cuda
from moeinf.gpu.device import CudaDevice
from moeinf.gpu.open_gpu import open_gpu
from moeinf.gpu.program import DecodeProgram
from moeinf.pull.pull import ensure, pull
from moeinf.store.library import StoredModel
from moeinf.types import Float32Array
from tests.support.configs.nllb_moe import NLLB
from tests.support.configs.switch_transformers import SWITCH
from tests.support.converter.meant import meant
from tests.support.converter.record import checkpoint
from tests.support.gguf_files import write_gguf
from tests.support.mixed_gguf import MIXED, by_turns, small, wide_model, without_vocabulary
from tests.support.pairs.stored_translators import TEXT, Stored

pytestmark = pytest.mark.gpu
PROMPT = "Once upon a time, in a village by the sea, there was a fisherman who said:"
NUM_TOKENS = 48


def tokens(stored: StoredModel, **options: Any) -> list[int]:
    """Of a prompt that is new, and of one whose keys and values are kept but for its last token's.

    That token is then a step of one token, whose weights are exact, and not a part of a prompt, whose are rounded: so
    the two answers may differ from each other.
    """
    settings: dict[str, Any] = {"device": "cuda", "prefill_chunk": 16} | options
    with Model(stored, RuntimeConfig.of(**settings)) as model:
        new, kept, again = (
            model.generate(PROMPT, model.params(temperature=0.0, num_predict=NUM_TOKENS, stop=())).token_ids
            for _ in range(3)
        )
        assert again == kept
        return new + kept


def host_room(stored: StoredModel, experts: int) -> str:
    """--ram that leaves room for so many experts, so that others come from the disk."""
    return str((1 << 30) + (64 << 20) + experts * stored.manifest.layout.stride_bytes + (1 << 20))


@pytest.mark.parametrize("quant", ["keep", "q8_0", "q4_k", "iq4_nl", "mxfp4"])
def test_tokens_are_the_same_for_every_number_of_slots(quant: str, tmp_path: Any) -> None:
    stored = pull("demo", PullOptions(quant=quant), home=tmp_path)
    whole = tokens(stored, expert_cache="100%")
    for slots in ("8%", "40%"):
        assert tokens(stored, expert_cache=slots) == whole
        assert tokens(stored, expert_cache=slots, ram=host_room(stored, 60)) == whole
        assert tokens(stored, expert_cache=slots, ram=host_room(stored, 60), prefetch=False) == whole


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device, or none")
def test_two_cards_give_the_tokens_of_one(demo: StoredModel) -> None:
    whole = tokens(demo, expert_cache="100%")
    for slots in ("8%", "40%", "100%"):
        assert tokens(demo, device="cuda:0,cuda:1", expert_cache=slots) == whole


def test_the_first_logits_are_those_of_the_cpu_within_bf16(demo: StoredModel) -> None:
    results = []
    for device in ("cuda", "cpu"):
        with Model(demo, RuntimeConfig.of(device=device)) as model:
            run = model.runner
            ids = model.encode(PROMPT)
            results.append(torch.from_numpy(run.forward(ids, lambda: None)[-1]))
    assert (results[0] - results[1]).abs().max() < 0.02 * results[1].abs().max()


def logits(stored: StoredModel, **options: Any) -> Float32Array:
    """Of a prompt and of three tokens behind it."""
    config = RuntimeConfig.of(**{"device": "cuda", "context": 64, "prefill_chunk": 16} | options)
    with Model(stored, config) as model:
        assert ("expert_cache" in options) == (model.tier.num_slots < stored.manifest.moe.total_experts)
        steps = [[5, 17, 3, 41, 41, 2, 60], [9], [33], [14]]
        return np.stack([model.runner.forward(step, lambda: None)[-1].copy() for step in steps])


def test_a_gguf_file_computes_what_it_does_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts and layers in types with kernels and without."""
    without_vocabulary(monkeypatch)
    config, tensors = checkpoint("qwen3_moe")
    types = ("Q5_0", "Q4_0", "Q5_1", "F16", "Q8_0", "Q4_1", "BF16", "IQ4_NL", "MXFP4", "F32")
    [file] = write_gguf(tmp_path / "m.gguf", meant(config), small(tensors), kinds=by_turns(types))
    stored = ensure(str(file), home=tmp_path / "home")
    found, wanted = logits(stored), logits(stored, device="cpu")
    assert np.linalg.norm(found - wanted) < 0.05 * np.linalg.norm(wanted)


def test_a_gguf_file_computes_the_same_for_every_number_of_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_vocabulary(monkeypatch)
    stored = wide_model(tmp_path, MIXED)
    whole = logits(stored)
    for options in ({"expert_cache": "10%"}, {"expert_cache": "40%", "prefetch": False}):
        assert np.array_equal(logits(stored, **options).argmax(axis=1), whole.argmax(axis=1))


def test_when_device_memory_runs_out_slots_are_given_up(demo: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    card = find_cuda("cuda", print)
    assert card is not None
    gpu = replace(open_gpu(card), segment_bytes=4 * demo.manifest.layout.stride_bytes)
    with Model(demo, RuntimeConfig.of(device="cuda", expert_cache="60%"), gpu=gpu) as model:
        run = model.runner
        assert isinstance(run, GpuRunner)
        slots, forward, calls = run.tier.num_slots, run.network.step, [0]

        def scarce(*args: Any) -> Any:
            calls[0] += 1
            if calls[0] == 9:
                torch.empty(1 << 50, dtype=torch.uint8, device="cuda")  # more than any card has
            return forward(*args)

        monkeypatch.setattr(run.network, "step", scarce)
        answer = model.generate(PROMPT, model.params(temperature=0.0, num_predict=NUM_TOKENS, stop=()))
        assert run.tier.num_slots < slots
    assert answer.token_ids == tokens(demo, expert_cache="60%")[:NUM_TOKENS]


@pytest.fixture(scope="module")
def translators(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StoredModel]:
    return {
        str(c["model_type"]): Stored(
            c,
            tmp_path_factory.mktemp("model"),
            {
                "decoder_start_token_id": c["decoder_start_token_id"],
                "eos_token_id": c["eos_token_id"],
                "max_length": 14,
            },
        ).stored
        for c in (SWITCH, NLLB)
    }


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("kind", ["switch_transformers", "nllb-moe"])
def test_an_encoder_decoder_answers_as_on_the_cpu_for_every_number_of_slots(
    translators: dict[str, StoredModel], kind: str, num_beams: int
) -> None:
    stored = translators[kind]
    options: dict[str, Any] = {"num_beams": num_beams}
    options |= {"src_lang": "eng_Latn", "tgt_lang": "fra_Latn"} if kind == "nllb-moe" else {}
    answers = []
    for device, slots, ram in (
        ("cpu", "100%", "auto"),
        ("cuda", "100%", "auto"),
        ("cuda", "10%", "auto"),
        ("cuda", "30%", host_room(stored, 10)),
    ):
        with Model(stored, RuntimeConfig.of(device=device, expert_cache=slots, ram=ram, **options)) as model:
            answers.append([model.generate(text, model.params()).token_ids for text in (TEXT, "w9 w9 w3", TEXT)])
    assert answers[0][0] and all(answer == answers[0] for answer in answers)


def test_a_program_replays_what_was_captured() -> None:
    device = CudaDevice(0)
    program, seen = DecodeProgram(device), list[float]()
    with device.computing():
        given = torch.zeros(4, device="cuda")
        noted = device.pinned((4,), torch.float32)

        def step() -> torch.Tensor:
            doubled = given * 2
            noted.copy_(doubled, non_blocking=True)

            def look() -> None:
                device.synchronise()
                seen.append(float(noted[0]))

            program.outside(look)
            return doubled + 1

        for value in range(6):
            given.fill_(value)
            result = program.run(step, "owner")
            device.synchronise()
            assert float(result[0]) == 2 * value + 1
    assert seen == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize("failure", ["out of memory", "a value asked for"])
def test_a_capture_that_fails_leaves_a_program_that_can_be_recorded(failure: str) -> None:
    device = CudaDevice(0)
    program, failing = DecodeProgram(device), [False]
    with device.computing():
        given = torch.zeros(4, device="cuda")

        def step() -> torch.Tensor:
            doubled = given * 2
            program.outside(lambda: None)
            if failing[0] and failure == "out of memory":
                torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
            elif failing[0]:
                float(doubled[0])
            return doubled + 1

        program.run(step, "owner")
        failing[0] = True
        with pytest.raises(RuntimeError):
            program.run(step, "owner")
        failing[0] = False
        for value in range(5):
            given.fill_(value)
            assert float(program.run(step, "owner")[0]) == 2 * value + 1
            if value == 3:
                program.reset()


def test_the_driver_copies_from_pinned_and_from_other_memory_behind_compute() -> None:
    driver = CudaDriver()
    copier = Copier(driver, 0)
    try:
        arena = Arena(600 << 20)  # more than one pinned piece
        memory = arena.array()
        memory[:] = np.arange(len(memory), dtype=np.uint64).astype(np.uint8)
        pinned = copier.register(memory, np.arange(4096, len(memory) + 1, 4096))
        size, stream = 3 << 20, torch.cuda.current_stream().cuda_stream
        target = torch.zeros((100, size), dtype=torch.uint8, device="cuda")
        offsets = np.arange(100, dtype=np.int64) * 5_000_000 // 4096 * 4096  # some across two pieces: by the ring
        ticket = copier.copy(
            arena.address + offsets, target.data_ptr() + np.arange(100) * size, np.full(100, size), stream
        )
        copier.make_wait(stream, ticket)
        total = target.sum(dim=1, dtype=torch.int64).cpu()
        assert pinned == len(memory)
        assert total.tolist() == [int(memory[at : at + size].sum(dtype=np.int64)) for at in offsets.tolist()]
        plain = np.full(2 * size, 7, np.uint8)
        copier.wait(copier.copy(np.array([plain.ctypes.data]), np.array([target.data_ptr()]), np.array([size]), stream))
        assert (target[0] == 7).all()
    finally:
        copier.close()
