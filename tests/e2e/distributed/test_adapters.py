"""A model in a GGUF file with an adapter, over workers: the answers of one machine, and no other adapter's experts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.cpu import CpuRunner
from moeinf.engine.model import Model
from moeinf.engine.worker import WorkerExperts
from moeinf.errors import WorkerError
from moeinf.pull.pull import ensure, pull
from moeinf.store.format import MERGED_FILE
from moeinf.store.library import StoredModel
from moeinf.store.verify import verify
from moeinf.types import Float32Array
from tests.support.adapters import PREFIX, write_adapter
from tests.support.converter.meant import meant
from tests.support.converter.record import checkpoint
from tests.support.gguf_files import write_gguf
from tests.support.mixed_gguf import small, without_vocabulary
from tests.support.ranks.workers import Workers

_IDS = (5, 17, 3, 41, 41, 2, 60, 9, 33, 14)
_QUERY = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("ranks")) as started:
        yield started


@pytest.fixture(autouse=True)
def ended(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    without_vocabulary(monkeypatch)
    yield
    workers.end_all()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    config, tensors = checkpoint("qwen3_moe")
    [path] = write_gguf(tmp_path / "model.gguf", meant(config), small(tensors), kinds=lambda name: "Q8_0")
    return path


def adapter(folder: Path, seed: int, *names: str) -> Path:
    """Of these matrices of the model, by default of a query's and of parts of experts in both layers."""
    _, tensors = checkpoint("qwen3_moe")
    of_experts = [f"model.layers.{i}.mlp.experts.{expert}.{part}_proj" for i, expert, part in _EXPERTS]
    generator, made = torch.Generator().manual_seed(seed), dict[str, torch.Tensor]()
    for name in names or (_QUERY, *of_experts):
        out, into = tensors[f"{name}.weight"].shape
        made[f"{PREFIX}{name}.lora_A.weight"] = torch.randn(2, into, generator=generator) * 0.2
        made[f"{PREFIX}{name}.lora_B.weight"] = torch.randn(out, 2, generator=generator) * 0.2
    return write_adapter(folder, made)


_EXPERTS = ((0, 0, "gate"), (0, 3, "up"), (0, 1, "down"), (1, 2, "gate"), (1, 1, "up"), (1, 3, "down"))


def merged(file: Path, adapter: Path, home: Path) -> StoredModel:
    """Under a name that says nothing of the adapter."""
    return ensure(str(file), PullOptions(lora=str(adapter), name="tuned"), home=home)


def opened(stored: StoredModel, **options: Any) -> Model:
    return Model(stored, RuntimeConfig.of(context=32, threads=1, device="cpu", expert_cache="50%", **options))


def logits(model: Model) -> Float32Array:
    """[tokens, vocab]: of a prompt, and of tokens one by one."""
    network: Any = model.runner.network
    model.runner.cache.truncate(0)
    rows = [network.forward(list(_IDS[:4]), model.runner.cache, last_only=False).copy()]
    rows += [network.forward([token], model.runner.cache).copy() for token in _IDS[4:]]
    model.tier.check_integrity()
    return np.concatenate(rows)


def test_ranks_compute_with_what_an_adapter_has_changed(workers: Workers, file: Path, tmp_path: Path) -> None:
    made = adapter(tmp_path / "adapter", 3)
    here, there = (merged(file, made, tmp_path / home) for home in ("here", "there"))
    with opened(here) as model:
        wanted = logits(model)
    with opened(ensure(str(file), home=tmp_path / "here")) as model:
        assert not np.array_equal(logits(model), wanted), "the adapter changes something"
    started = [workers.start(each, expert_cache="50%") for each in (there, here)]
    with opened(here, **workers.options(*started)) as model:
        assert np.array_equal(logits(model), wanted)
        assert isinstance(model.runner, CpuRunner) and model.runner.star is not None
        assert np.unique(model.runner.star.owner).tolist() == [0, 1, 2], "each rank has some"


def test_experts_of_another_adapter_of_the_same_shape_are_refused(workers: Workers, file: Path, tmp_path: Path) -> None:
    here = merged(file, adapter(tmp_path / "one" / "adapter", 3), tmp_path / "here")
    there = merged(file, adapter(tmp_path / "two" / "adapter", 4), tmp_path / "there")
    with pytest.raises(WorkerError, match="it has another model, or another state of it"):
        opened(here, **workers.options(workers.start(there, expert_cache="50%"))).close()


def test_numbers_that_samples_do_not_see_tell_two_adapters(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("pull.gguf.index", "engine.joining"):
        monkeypatch.setattr(f"moeinf.{module}.samples_digest", lambda *_: "")
    told = []
    for number, seed in enumerate((3, 4, 3)):
        stored = merged(file, adapter(tmp_path / str(number), seed), tmp_path / f"home{number}")
        with WorkerExperts(stored, RuntimeConfig.of(threads=1, expert_cache="50%")) as experts:
            told.append((stored.manifest.in_place, experts.facts))
    assert told[0] == told[2] and told[0][0] != told[1][0] and told[0][1] != told[1][1]


def test_files_of_the_same_header_are_told_by_their_weights(workers: Workers, file: Path, tmp_path: Path) -> None:
    here = ensure(str(file), PullOptions(name="model"), home=tmp_path / "here")
    config, tensors = checkpoint("qwen3_moe")
    other = {name: -tensor for name, tensor in small(tensors).items()}
    (tmp_path / "other").mkdir()
    [second] = write_gguf(tmp_path / "other" / "model.gguf", meant(config), other, kinds=lambda name: "Q8_0")
    there = ensure(str(second), PullOptions(name="model"), home=tmp_path / "there")
    with pytest.raises(WorkerError, match="it has another model, or another state of it"):
        opened(here, **workers.options(workers.start(there, expert_cache="50%"))).close()


def test_what_only_rank_0_computes_may_differ(workers: Workers, file: Path, tmp_path: Path) -> None:
    """Attention is rank 0's own: a worker with the file alone has the same experts."""
    here = merged(file, adapter(tmp_path / "adapter", 3, _QUERY), tmp_path / "here")
    there = ensure(str(file), PullOptions(name="tuned"), home=tmp_path / "there")
    with opened(here) as model:
        wanted = logits(model)
    with opened(here, **workers.options(workers.start(there, expert_cache="50%"))) as model:
        assert np.array_equal(logits(model), wanted)


def test_a_worker_that_lacks_the_model_is_told_of_copies(workers: Workers, file: Path, tmp_path: Path) -> None:
    made = adapter(tmp_path / "adapter", 3)
    here = merged(file, made, tmp_path / "here")
    lacking = workers.start(here, home=tmp_path / "there", expert_cache="50%")
    with pytest.raises(WorkerError, match="copy that file there, or pull it here with --repack"):
        opened(here, **workers.options(lacking)).close()
    copy = pull(str(file), PullOptions(lora=str(made), name="copy", repack=True), home=tmp_path / "here")
    with opened(here) as model:
        wanted = logits(model)
    sent = workers.start(copy, home=tmp_path / "there", expert_cache="50%")
    with opened(copy, **workers.options(sent)) as model:
        assert np.array_equal(logits(model), wanted)


def test_damage_is_found_without_checksums_of_the_file(file: Path, tmp_path: Path) -> None:
    """What moeinf has written has a checksum of its own."""
    stored = merged(file, adapter(tmp_path / "adapter", 3), tmp_path / "home")
    path = stored.path / MERGED_FILE
    data = bytearray(path.read_bytes())
    data[len(data) * 3 // 5] ^= 1
    path.write_bytes(data)
    assert verify(stored, lambda count: None) == [f"{MERGED_FILE} does not match its checksum"]
