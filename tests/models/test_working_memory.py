"""What a pass takes of memory beside weights, cache and slots, against what the plan reserves for it: on the CPU, where
numpy tells tracemalloc what it takes and native operations tell what they keep."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from moeinf import on_cpu
from moeinf._native import ExpertKernel, Kernels
from moeinf.config import RuntimeConfig
from moeinf.dense import DenseFile
from moeinf.hardware import Machine
from moeinf.install import pull
from moeinf.laps import Laps
from moeinf.models import architecture
from moeinf.on_cpu import CpuRun
from moeinf.parts import ModelParts
from moeinf.runtime.eamc import ActivationCollection
from moeinf.store.library import StoredModel
from tests.checkpoints import random_tensors, write_checkpoint
from tests.models.common import all_configs
from tests.pull.test_families import TRUE, published

THREADS = 2
CONTEXT, CHUNK = 4096, 512
BESIDE = 18 << 20  # bytes that an estimate may be too high by, beside half of it: rooms of fixed size
FAMILIES = {config["model_type"]: config for config in reversed(all_configs().values())}  # the first of each
DECODERS = [name for name in TRUE if not name.startswith(("switch", "nllb"))]


def stored_with(config: dict[str, Any], folder: Path, quant: str | None = None) -> StoredModel:
    """Small random weights in bf16, and room for CONTEXT tokens."""
    config = {name: value for name, value in config.items() if name != "quantization_config"}
    inside = config.get("text_config", config)
    inside["max_position_embeddings"] = max(CONTEXT, inside["max_position_embeddings"])
    weights = {name: tensor * 0.02 for name, tensor in random_tensors(config, layout=-1).items()}
    source = write_checkpoint(folder / "source", weights, config | {"torch_dtype": "bfloat16"})
    return pull(str(source), home=folder / "home", quant=quant)


class Measured:
    """A model on the CPU whose working memory is counted."""

    def __init__(self, stored: StoredModel, config: RuntimeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
        self._experts: list[ExpertKernel] = []

        def make(*arguments: Any) -> ExpertKernel:
            self._experts.append(ExpertKernel(*arguments))
            return self._experts[-1]

        monkeypatch.setattr(on_cpu, "ExpertKernel", make)
        self._kernels = Kernels(THREADS)
        config_json = json.loads((stored.path / "config.json").read_text())
        family = architecture(config_json)
        plan = family.tensor_plan(config_json)
        self.run = CpuRun(ModelParts(
            stored, config, Machine(1 << 36, "test", THREADS), family, config_json, plan.form, plan.work,
            DenseFile(stored, plan), self._kernels, ActivationCollection(stored.manifest.moe), [], Laps(), [],
            lambda done, total: None))

    def close(self) -> None:
        self.run.close()

    @contextmanager
    def counting(self) -> Iterator[list[int]]:
        """Fills the list with the bytes that were held at once inside, by numpy and native operations."""
        held: list[int] = []
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            yield held
            held.append(tracemalloc.get_traced_memory()[1] - before + self._kernels.scratch_bytes
                        + self._experts[0].scratch_bytes)
        finally:
            tracemalloc.stop()

    def last_chunk_and_a_token(self) -> list[int]:
        """Bytes of a prompt's last chunk, at the end of the context, and of a token behind it."""
        run, chunk = self.run, self.run.plan.prefill_chunk
        run.forward([1], run.cache)  # what is made once is there
        for state in run.cache.states:
            for name in ("keys", "values", "data"):  # of places that no token was given
                if hasattr(state, name):
                    getattr(state, name)[:] = 0
        run.cache.length = run.plan.context - chunk - 1
        bytes_held = list[int]()
        for ids in ([token % 90 for token in range(chunk)], [3]):
            with self.counting() as held:
                run.forward(ids, run.cache)
            bytes_held += held
        return bytes_held


def check(stored: StoredModel, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    config = RuntimeConfig(**{"context": CONTEXT, "prefill_chunk": CHUNK, "threads": THREADS} | options)
    with closing(Measured(stored, config, monkeypatch)) as measured:
        reserved = measured.run.plan.activation_bytes
        prefill, decode = measured.last_chunk_and_a_token()
    assert prefill <= reserved <= 2 * prefill + BESIDE
    assert decode <= reserved


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_plan_reserves_what_a_pass_of_every_family_takes(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                             ) -> None:
    check(stored_with(dict(FAMILIES[kind]), tmp_path), monkeypatch)


@pytest.mark.parametrize("name", DECODERS)
def test_the_plan_reserves_what_a_pass_in_true_proportions_takes(
    name: str, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(stored_with(published(data_folder, name), tmp_path), monkeypatch)


@pytest.mark.parametrize("chunk", [64, 2048])
@pytest.mark.parametrize("quant", ["q8_0", "q4_k"])
def test_the_plan_reserves_what_quantised_weights_take(
    quant: str, chunk: int, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(stored_with(published(data_folder, "qwen3-30b-a3b"), tmp_path, quant), monkeypatch, prefill_chunk=chunk)


@pytest.mark.parametrize("kind", ["gpt_oss", "deepseek_v3", "qwen3_next"])
def test_the_plan_reserves_what_131072_tokens_take(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = FAMILIES[kind] | {"max_position_embeddings": 131_072}
    check(stored_with(config, tmp_path), monkeypatch, context=131_072, prefill_chunk=64)
