"""longrope goes by what a sequence has room for: short factors in a short context, long ones in a long context."""

from __future__ import annotations

import pytest
import torch

from tests.support.configs.phimoe import LONG, PHI
from tests.support.pairs.decoders import PROMPT, Pair
from tests.support.pairs.on_device import on_device

ROOM = LONG["original_max_position_embeddings"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(PHI | {"rope_parameters": LONG}, tmp_path_factory.mktemp("checkpoint"))


@torch.inference_mode()
@pytest.mark.parametrize("device", [False, True], ids=["cpu", "device"])
@pytest.mark.parametrize(("room", "tokens"), [(ROOM, ROOM), (256, ROOM + 1)], ids=["short", "long"])
def test_logits_are_those_of_a_sequence_of_that_length(pair: Pair, room: int, tokens: int, device: bool) -> None:
    model = on_device(pair)[0] if device else pair.ours
    cache = model.new_cache(room)
    ours = torch.cat([torch.from_numpy(model.forward([token], cache)) for token in PROMPT[:tokens]])
    theirs = pair.theirs(torch.tensor([PROMPT[:tokens]])).logits[0]
    assert (ours - theirs).abs().max() < 1e-4


@torch.inference_mode()
def test_the_two_differ(pair: Pair) -> None:
    model = pair.ours
    short, long = (torch.from_numpy(model.forward(PROMPT[:ROOM], model.new_cache(room))) for room in (ROOM, 256))
    assert (short - long).abs().max() > 0.1
