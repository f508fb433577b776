"""Every decoder against its reference, mostly transformers, on tiny random configs that switch its features on.

Its experts are in memory; or they are pulled into a store, and streamed through the smallest cache.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch

from moeinf.models.registry import SUPPORTED
from tests.oracles.resident_experts import ResidentExperts
from tests.support.pairs.decoders import CONFIGS, PROMPT, Pair, logits, our_tokens, their_logits
from tests.support.pairs.experts import layout_in
from tests.support.pairs.streamed import pulled_pair, smallest
from tests.support.tiny_models import all_configs


@pytest.fixture(scope="module", params=CONFIGS, ids=lambda name: name.replace(" ", "-"))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(CONFIGS[request.param], tmp_path_factory.mktemp("checkpoint"))


@torch.inference_mode()
def test_logits_are_those_of_the_reference(pair: Pair) -> None:
    theirs = their_logits(pair)
    assert theirs.std() > 0.1, "the comparison means something"
    assert (logits(pair.ours, [PROMPT]) - theirs).abs().max() < 1e-4


@torch.inference_mode()
@pytest.mark.parametrize("size", [1, 2, 5, 16])
def test_prefill_in_chunks_equals_prefill_at_once(pair: Pair, size: int) -> None:
    whole = logits(pair.ours, [PROMPT])
    chunks = [PROMPT[at : at + size] for at in range(0, len(PROMPT), size)]
    assert torch.equal(logits(pair.ours, chunks), whole)


@torch.inference_mode()
def test_guesses_at_the_next_layers_routing_change_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, guessed, layers = logits(pair.ours, [PROMPT]), list[int](), pair.plan.moe.num_layers
    monkeypatch.setattr(ResidentExperts, "wants_expectations", True)
    monkeypatch.setattr(ResidentExperts, "expect", lambda self, layer, guess: guessed.append(layer))
    assert torch.equal(logits(pair.ours, [PROMPT[:5], PROMPT[5:6], PROMPT[6:]]), whole)
    assert guessed or layers == 1


@torch.inference_mode()
def test_64_greedy_tokens_are_those_of_the_reference(pair: Pair) -> None:
    assert our_tokens(pair) == pair.their_tokens


@torch.inference_mode()
def test_so_are_those_of_a_store_through_the_smallest_expert_cache(pair: Pair, tmp_path: Path) -> None:
    with closing(smallest(pair, pulled_pair(pair.folder, tmp_path))) as run:
        assert run.plan.num_slots == pair.plan.moe.top_k < pair.plan.moe.total_experts
        ours = [int(run.forward(PROMPT)[-1].argmax())]
        while len(ours) < 64:
            ours.append(int(run.forward(ours[-1:])[-1].argmax()))
        run.tier.check_integrity()
    assert ours == pair.their_tokens


def test_the_plan_names_every_tensor_of_the_checkpoint_and_no_other(pair: Pair) -> None:
    layout = layout_in(pair.plan, pair.tensors)
    assert pair.plan.dense.keys() | layout.keys() == pair.tensors.keys()
    assert all(tuple(pair.tensors[name].shape) == shape for name, shape in pair.plan.dense.items())


def test_model_info_counts_the_parameters_of_the_reference(pair: Pair) -> None:
    buffers = [
        b for name, b in pair.theirs.named_buffers() if name.endswith(("_bias", "_biases", "layer_scalar", "tid2eid"))
    ]
    assert pair.info.num_params == sum(p.numel() for p in (*pair.theirs.parameters(), *buffers))


def test_each_supported_architecture_is_compared() -> None:
    compared = CONFIGS | all_configs("SEQ2SEQ_CONFIGS")
    assert {config["model_type"] for config in compared.values()} == set(SUPPORTED)
