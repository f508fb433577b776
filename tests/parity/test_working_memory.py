"""What a pass takes of memory beside weights, cache and slots, against what the plan reserves for it.

On the CPU numpy tells tracemalloc what it takes, and native operations tell what they keep. On the emulated device the
tensors are counted that layers make; what is inside of the kernels' twins is not, as the kernels are other ones.
"""

from __future__ import annotations

import json
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from moeinf._native import ExpertKernel, Kernels
from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine import cpu as on_cpu
from moeinf.engine.build_context import BuildContext, Host, Observation
from moeinf.engine.cpu import CpuRunner
from moeinf.engine.gpu import GpuRunner
from moeinf.engine.memory import plan as on_memory
from moeinf.engine.memory.footprint import ATTENTION_MASK_BYTES
from moeinf.engine.reporting import Reporting
from moeinf.engine.stored_weights import Weights
from moeinf.engine.weights.dense_file import DenseFile
from moeinf.gpu.ops import Ops
from moeinf.hardware import Machine
from moeinf.models.family import family_of
from moeinf.pull.pull import pull
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.store.dense_sums import DenseSums
from moeinf.store.library import StoredModel
from moeinf.store.sums.checksums import sums_of
from moeinf.types import Profiler
from tests.support.checkpoints import random_tensors, scaled, write_checkpoint
from tests.support.gpu.emulated_gpu import emulated
from tests.support.tiny_models import all_configs, text_of
from tests.support.true_configs import DISTINCT, published

THREADS = 2
CONTEXT, CHUNK = 4096, 512
BESIDE = 19 << 20  # bytes that an estimate may be too high by, beside half of it: rooms of fixed size
StoreOnce = Callable[[dict[str, Any]], StoredModel]
FAMILIES = {config["model_type"]: config for config in reversed(all_configs().values())}  # the first of each
DECODERS = [name for name in DISTINCT if not name.startswith(("switch", "nllb"))]


def stored_with(config: dict[str, Any], folder: Path, quant: str | None = None) -> StoredModel:
    """Small random weights in bf16, and room for CONTEXT tokens."""
    config = {name: value for name, value in config.items() if name != "quantization_config"}
    inside = text_of(config)
    inside["max_position_embeddings"] = max(CONTEXT, inside["max_position_embeddings"])
    weights = scaled(random_tensors(config, layout=-1), 0.02)
    source = write_checkpoint(folder / "source", weights, config | {"torch_dtype": "bfloat16"})
    return pull(str(source), PullOptions(quant=quant), home=folder / "home")


@pytest.fixture(scope="module")
def stored_once(tmp_path_factory: pytest.TempPathFactory) -> StoreOnce:
    """`stored_with`, but that each model is made once for the tests of both devices."""
    made: dict[str, StoredModel] = {}

    def stored(config: dict[str, Any]) -> StoredModel:
        key = json.dumps(config, sort_keys=True)
        if key not in made:
            made[key] = stored_with(dict(config), tmp_path_factory.mktemp("model"))
        return made[key]

    return stored


def context_of(stored: StoredModel, config: RuntimeConfig, kernels: Kernels) -> BuildContext:
    config_json = json.loads((stored.path / "config.json").read_text())
    family = family_of(config_json)
    plan = family.tensors
    dense = DenseFile(stored, plan, DenseSums(stored, sums_of(stored)[0]))
    return BuildContext(
        Weights(stored, family, config_json, dense),
        Host(Machine(1 << 36, "test", THREADS), config, kernels),
        Observation(ActivationCollection(stored.manifest.moe), Profiler()),
        Reporting(),
    )


class Measured:
    """A model on the CPU whose working memory is counted."""

    def __init__(self, stored: StoredModel, config: RuntimeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
        self._experts: list[ExpertKernel] = []

        def make(*arguments: Any) -> ExpertKernel:
            self._experts.append(ExpertKernel(*arguments))
            return self._experts[-1]

        monkeypatch.setattr(on_cpu, "ExpertKernel", make)
        self._kernels = Kernels(THREADS)
        self.run = CpuRunner(context_of(stored, config, self._kernels))

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
            held.append(
                tracemalloc.get_traced_memory()[1]
                - before
                + self._kernels.scratch_bytes
                + self._experts[0].scratch_bytes
            )
        finally:
            tracemalloc.stop()

    def last_chunk_and_a_token(self, chunk: int) -> list[int]:
        """Bytes of a prompt's last chunk, at the end of the context, and of a token behind it."""
        run = self.run
        run.forward([1])  # what is made once is there
        for state in run.cache.states:
            for name in ("keys", "values", "rows", "index_keys", "entries"):  # of places that no token was given
                if hasattr(state, name):
                    getattr(state, name)[:] = 0
        run.cache.length, run.cache.reach = run.plan.context - chunk - 1, run.plan.context
        bytes_held = list[int]()
        for ids in ([token % 90 for token in range(chunk)], [3]):
            with self.counting() as held:
                run.forward(ids)
            bytes_held += held
        return bytes_held


def check(stored: StoredModel, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    config = RuntimeConfig.of(**{"context": CONTEXT, "prefill_chunk": CHUNK, "threads": THREADS} | options)
    with closing(Measured(stored, config, monkeypatch)) as measured:
        reserved = measured.run.plan.activation_bytes
        prefill, decode = measured.last_chunk_and_a_token(measured.run.plan.prefill_chunk)
    assert prefill <= reserved <= 2 * prefill + BESIDE
    assert decode <= reserved


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_plan_reserves_what_a_pass_of_every_family_takes(
    kind: str, stored_once: StoreOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(stored_once(FAMILIES[kind]), monkeypatch)


@pytest.mark.parametrize("name", DECODERS)
def test_the_plan_reserves_what_a_pass_in_true_proportions_takes(
    name: str, stored_once: StoreOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(stored_once(published(name)), monkeypatch)


@pytest.mark.parametrize("chunk", [64, 2048])
@pytest.mark.parametrize("quant", ["q8_0", "q4_k"])
def test_the_plan_reserves_what_quantised_weights_take(
    quant: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(stored_with(published("qwen3-30b-a3b"), tmp_path, quant), monkeypatch, prefill_chunk=chunk)


def test_long_pieces_take_what_slots_lend_and_give_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_memory, "PREFILL_CHUNK", 64)  # so that experts this small have memory to lend
    stored = stored_with(published("qwen3-30b-a3b"), tmp_path, "q8_0")
    config = RuntimeConfig.of(context=CONTEXT, expert_cache="90%", threads=THREADS)
    with closing(Measured(stored, config, monkeypatch)) as measured:
        plan = measured.run.plan
        assert plan.long_pieces is not None and plan.most_at_once >= 2 * plan.prefill_chunk
        prefill, decode = measured.last_chunk_and_a_token(plan.most_at_once)
    assert prefill <= plan.activation_bytes + plan.long_pieces.num_bytes <= 2 * prefill + BESIDE
    assert decode <= min(plan.activation_bytes, prefill / 2), "what the piece took went back"


@pytest.mark.parametrize("kind", ["gpt_oss", "deepseek_v3", "qwen3_next"])
def test_the_plan_reserves_what_131072_tokens_take(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = FAMILIES[kind] | {"max_position_embeddings": 131_072}
    check(stored_with(config, tmp_path), monkeypatch, context=131_072, prefill_chunk=64)


# ---- a device


class HeldTensors(TorchDispatchMode):
    """Counts the bytes of tensors that are alive and were made while it is entered, but for those that `uncounted`
    calls make."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return result

    @staticmethod
    def uncounted(kernels: Any) -> Any:
        """The same kernels, whose calls' own tensors are not counted."""

        class Kernels:
            def __getattr__(self, name: str) -> Callable[..., Any]:
                def call(*args: Any, **kwargs: Any) -> Any:
                    with _disable_current_modes():
                        return getattr(kernels, name)(*args, **kwargs)

                return call

        return Kernels()

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, num_bytes = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.now += num_bytes
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._gone, key, num_bytes)

    def _gone(self, key: int, num_bytes: int) -> None:
        self._known.remove(key)
        self.now -= num_bytes


def check_device(stored: StoredModel) -> None:
    held, gpu = HeldTensors(), emulated()
    gpu = replace(gpu, ops=Ops(held.uncounted(gpu.ops.vectors), held.uncounted(gpu.ops.matrices)))
    config = RuntimeConfig.of(context=CONTEXT, prefill_chunk=CHUNK)
    with closing(GpuRunner(context_of(stored, config, Kernels(1)), gpu)) as run:
        run.forward([1])  # what is made once is there
        run.cache.reach = CONTEXT
        with held:
            run.forward([token % 90 for token in range(CHUNK)])
        inside = min(ATTENTION_MASK_BYTES, CHUNK * CONTEXT * 4)
        reserved = run.plan.activation_bytes
    # Attention and experts take by turns, and the plan has a sum of them: memory of one seldom serves for the other.
    assert held.most + inside <= reserved <= 4 * held.most + inside + 4 * BESIDE


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_plan_of_a_device_reserves_what_the_layers_of_every_family_take(kind: str, stored_once: StoreOnce) -> None:
    check_device(stored_once(FAMILIES[kind]))


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "qwen1.5-moe-a2.7b", "gpt-oss-20b", "deepseek-v3"])
def test_the_plan_of_a_device_reserves_what_layers_in_true_proportions_take(name: str, stored_once: StoreOnce) -> None:
    check_device(stored_once(published(name)))
