"""Every architecture, pulled into a store and streamed through the smallest expert cache: the reference's tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import torch

from moeinf.engine.cpu import CpuRunner
from tests.support.pairs.decoders import CONFIGS, PROMPT, Pair
from tests.support.pairs.streamed import pulled_pair, smallest


@pytest.fixture(scope="module", params=CONFIGS, ids=lambda name: name.replace(" ", "-"))
def pulled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Pair, CpuRunner]]:
    folder, home = tmp_path_factory.mktemp("checkpoint"), tmp_path_factory.mktemp("home")
    pair = Pair(CONFIGS[request.param], folder)
    with closing(smallest(pair, pulled_pair(folder, home))) as run:
        yield pair, run


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
