"""Every architecture, pulled into a store and streamed through the smallest expert cache: the reference's tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.build_context import BuildContext, Host, Observation, Reporting, Weights
from moeinf.engine.cpu import CpuRunner
from moeinf.engine.dense_weights import DenseFile
from moeinf.hardware import machine
from moeinf.models.family import family_of
from moeinf.pull.pull import pull
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.store.checksums import sums_of
from moeinf.store.dense_sums import DenseSums
from moeinf.store.library import StoredModel
from moeinf.types import Profiler
from tests.parity.test_parity import CONFIGS, PROMPT, Pair
from tests.support.checkpoints import write_tokenizer


@pytest.fixture(scope="module", params=CONFIGS, ids=lambda name: name.replace(" ", "-"))
def pulled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Pair, CpuRunner]]:
    folder, home = tmp_path_factory.mktemp("checkpoint"), tmp_path_factory.mktemp("home")
    pair = Pair(CONFIGS[request.param], folder)
    with closing(smallest(pair, stored(folder, home))) as run:
        yield pair, run


def stored(checkpoint: Path, home: Path) -> StoredModel:
    (checkpoint / "tokenizer_config.json").write_text("{}")
    write_tokenizer(checkpoint)
    return pull(str(checkpoint), PullOptions(name="tiny"), home=home)


def smallest(pair: Pair, stored: StoredModel) -> CpuRunner:
    """With as many slots as one token needs in a layer."""
    size = stored.manifest.moe.top_k * stored.manifest.layout.stride_bytes
    config = RuntimeConfig.of(expert_cache=f"{size}B", context=256, threads=2)
    dense = DenseFile(stored, pair.plan, DenseSums(stored, sums_of(stored)[0]))
    context = BuildContext(
        Weights(stored, family_of(pair.config), pair.config, dense),
        Host(machine(), config, pair.kernels),
        Observation(ActivationCollection(stored.manifest.moe), Profiler()),
        Reporting(),
    )
    return CpuRunner(context)


@torch.inference_mode()
def test_64_greedy_tokens_are_those_of_the_reference(pulled: tuple[Pair, CpuRunner]) -> None:
    pair, run = pulled
    assert run.plan.num_slots == pair.plan.moe.top_k < pair.plan.moe.total_experts
    theirs = pair.theirs.generate(
        torch.tensor([PROMPT]), max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    ours = [int(run.forward(PROMPT)[-1].argmax())]
    for _ in range(63):
        ours.append(int(run.forward(ours[-1:])[-1].argmax()))
    run.tier.check_integrity()
    assert ours == theirs[0, len(PROMPT) :].tolist()
