"""Every encoder-decoder architecture against its reference, on tiny random configs that switch its features on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from moeinf._native import Kernels
from moeinf.errors import UnsupportedModelError
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.family import family_of
from moeinf.models.layers.assemble import EncoderDecoderFamily
from moeinf.sampling.beam_search import BeamSearch
from moeinf.types import Profiler
from tests.support.pairs.experts import resident_experts, stored
from tests.support.pairs.translators import (
    ANSWER,
    CONFIGS,
    SOURCE,
    Pair,
    logits,
    our_tokens,
    searched,
    their_logits,
    their_tokens,
)


@pytest.fixture(scope="module", params=CONFIGS, ids=lambda name: name.replace(" ", "-"))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(CONFIGS[request.param], tmp_path_factory.mktemp("checkpoint"))


@torch.inference_mode()
def test_logits_are_those_of_the_reference_token_by_token(pair: Pair) -> None:
    theirs = their_logits(pair)
    assert theirs.std() > 0.05, "the comparison means something"
    assert (logits(pair.ours, [[token] for token in ANSWER]) - theirs).abs().max() < 1e-4


@pytest.mark.parametrize("size", [2, 5, 12])
def test_an_answer_in_chunks_equals_the_answer_token_by_token(pair: Pair, size: int) -> None:
    chunks = [ANSWER[at : at + size] for at in range(0, len(ANSWER), size)]
    assert (logits(pair.ours, chunks) - logits(pair.ours, [[token] for token in ANSWER])).abs().max() < 1e-4


@torch.inference_mode()
def test_64_greedy_tokens_are_those_of_the_reference(pair: Pair) -> None:
    ours = our_tokens(pair)
    assert len(set(ours)) > 3, "the comparison means something"
    assert ours == their_tokens(pair)


def test_the_plan_names_every_tensor_of_the_checkpoint_and_no_other(pair: Pair) -> None:
    assert pair.plan.dense.keys() | pair.plan.experts[0].keys() == pair.tensors.keys()
    assert all(tuple(pair.tensors[name].shape) == shape for name, shape in pair.plan.dense.items())
    assert all(tuple(pair.tensors[name].shape) == shape for name, (shape, _) in pair.plan.experts[0].items())


def test_model_info_counts_the_parameters_of_the_reference(pair: Pair) -> None:
    assert pair.info.num_params + pair.own_params == sum(p.numel() for p in pair.theirs.parameters())


def test_moe_layers_are_numbered_encoder_first(pair: Pair) -> None:
    cache, layers = pair.ours.new_cache(8), range(pair.plan.moe.num_layers)
    pair.experts.layers.clear()
    pair.ours.encode(SOURCE, cache)
    num_encoder = len(pair.experts.layers)
    pair.ours.forward([0], cache)
    assert pair.experts.layers == list(layers) and 0 < num_encoder < len(layers)


def test_nllb_as_published_was_saved_without_its_head_and_so_without_a_prefix(tmp_path: Path) -> None:
    pair = Pair(CONFIGS["nllb"], tmp_path)
    config = pair.config | {"architectures": ["NllbMoeModel"]}
    tensors = {name.removeprefix("model."): tensor for name, tensor in pair.tensors.items()}
    family, kernels = family_of(config), Kernels(1)
    assert isinstance(family, EncoderDecoderFamily)
    plan = family.tensors
    assert plan.dense.keys() | plan.experts[0].keys() == tensors.keys()
    weights = NativeLayers(kernels, {name: stored(tensor) for name, tensor in tensors.items()}, "f32")
    bare = family.build(weights, resident_experts(plan, tensors, kernels), Profiler())
    assert torch.equal(logits(bare, [ANSWER]), logits(pair.ours, [ANSWER]))


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("switch", "feed_forward_proj", "gated-gelu"),
        ("switch", "dense_act_fn", "mish"),
        ("switch", "num_selected_experts", 2),
        ("switch", "router_dtype", "bfloat16"),
        ("nllb", "activation_function", "mish"),
        ("nllb", "second_expert_policy", "random"),
        ("nllb", "moe_eval_capacity_token_fraction", 0.0),
    ],
)
def test_a_field_that_changes_the_mathematics_is_refused_by_name(name: str, field: str, value: object) -> None:
    with pytest.raises(UnsupportedModelError, match=field):
        family_of(CONFIGS[name] | {field: value})


@torch.inference_mode()
@pytest.mark.parametrize(
    ("num_beams", "penalty", "early", "forced"),
    [(2, 1.0, False, []), (3, 1.0, True, [33]), (3, 0.3, "never", []), (4, 1.5, "never", [33]), (2, -0.5, False, [33])],
)
def test_a_beam_search_finds_what_transformers_finds(
    pair: Pair, num_beams: int, penalty: float, early: Any, forced: list[int]
) -> None:
    """With three tokens that end an answer, so that answers do end; and with a first token that is given, or not."""
    eos = [17, 9, 61]
    theirs = pair.theirs.generate(
        torch.tensor([SOURCE]),
        max_new_tokens=16,
        do_sample=False,
        num_beams=num_beams,
        length_penalty=penalty,
        early_stopping=early,
        eos_token_id=eos,
        pad_token_id=0,
        forced_bos_token_id=forced[0] if forced else None,
    )
    search = BeamSearch(num_beams, frozenset(eos), penalty, early)
    assert searched(pair, search, 16 - len(forced), forced) == theirs[0].tolist()
