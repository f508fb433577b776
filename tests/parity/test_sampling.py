"""The sampler draws every token as often as transformers would: its own processors, in its own order.

What share of draws falls on a token is found without drawing at random: the drawn number is set just inside both ends
of the range that transformers' probabilities give the token. Together these ranges are the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.utils import GenerationMixin

from moeinf.sampling.params import resolve_params
from moeinf.sampling.sampler import Sampler
from moeinf.types import Float32Array, FloatArray
from tests.support.pairs.decoders import CONFIGS, PROMPT, Pair

NEAR = 2e-6  # of the whole: what float32 rounds of a border, here and in transformers
EVERYTHING = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0, "eos_token_id": [0]}
WARPERS = {"temperature", "top_k", "top_p", "min_p", "typical_p", "do_sample"}


class Drawn:
    """A generator of random numbers that gives the one it was told."""

    value = 0.0

    def random(self) -> float:
        return self.value


@dataclass
class Step:
    """What is known before a token: a prompt, an answer so far, and the logits."""

    prompt: list[int]
    answer: list[int]
    logits: Float32Array

    @property
    def history(self) -> list[int]:
        return self.prompt + self.answer


def processed(config: Mapping[str, Any], step: Step) -> FloatArray:
    """The scores that transformers would draw by."""
    make: Any = GenerationConfig
    generation, mixin = make(**config), GenerationMixin
    generation._eos_token_tensor = torch.tensor(config["eos_token_id"])
    owner: Any = SimpleNamespace(
        config=SimpleNamespace(is_encoder_decoder=False), _merge_criteria_processor_list=lambda ours, given: ours
    )
    processors: Any = mixin._get_logits_processor(owner, generation, len(step.prompt), device="cpu")
    scores: FloatArray = processors(torch.tensor([step.history]), torch.tensor(step.logits)[None])[0].double().numpy()
    return scores


def shares(config: Mapping[str, Any], step: Step) -> FloatArray:
    """The probabilities of all tokens; of equals that the nucleus divides, the first have them.

    Which of equal tokens pass is left to the sort of torch, which is not stable.
    """
    scores = processed(config, step)
    before = processed({name: value for name, value in config.items() if name not in WARPERS}, step)
    for value in np.unique(before[np.isfinite(scores)]):
        equal = np.flatnonzero(before == value)
        kept = scores[equal][np.isfinite(scores[equal])]
        scores[equal] = np.concatenate([kept, np.full(len(equal) - len(kept), -math.inf)])
    weights = np.exp(scores - scores.max())
    found: FloatArray = weights / weights.sum()
    return found


def beside_borders(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The settings, and those whose borders lie where rounding may move them."""
    for top_p, min_p in product((0, -NEAR, NEAR), repeat=2):
        near = {"top_p": config["top_p"] + top_p if config["top_p"] < 1 else 1.0}
        if config.get("min_p"):
            near["min_p"] = config["min_p"] + min_p * 5
        yield {**config, **{name: min(max(value, 0.0), 1.0) for name, value in near.items()}}


def sampler_at(config: Mapping[str, Any], step: Step) -> tuple[Sampler, Drawn]:
    """A sampler that has drawn the answer so far."""
    params = resolve_params({}, config)
    sampler, drawn = Sampler(params, num_ids=len(step.logits), ends=set(config["eos_token_id"])), Drawn()
    for length in range(len(step.answer)):
        sampler.sample(step.logits, step.prompt + step.answer[:length])
    sampler._random = drawn  # type: ignore[assignment]
    return sampler, drawn


def draws_by(probabilities: FloatArray, sampler: Sampler, drawn: Drawn, step: Step) -> bool:
    ends = np.cumsum(probabilities)
    for token in np.flatnonzero(probabilities > 4 * NEAR):
        for drawn.value in (max(0, ends[token] - probabilities[token] + NEAR), ends[token] - NEAR):
            if sampler.sample(step.logits, step.history) != token:
                return False
    return True


def assert_drawn_as_by_transformers(config: Mapping[str, Any], step: Step) -> None:
    sampler, drawn = sampler_at(config, step)
    for near in beside_borders(config):
        if draws_by(shares(near, step), sampler, drawn, step):
            return
    raise AssertionError(f"other shares than transformers gives: {config} {step}")


def random_step(rng: np.random.Generator, size: int) -> Step:
    """Logits of random spread; of some steps many are equal."""
    logits = rng.normal(0, rng.choice([0.01, 1, 3, 10]), size)
    if rng.random() < 0.4:
        logits = np.round(logits * 2) / 2
    tokens = rng.integers(0, size, rng.integers(3, 12)).tolist()
    begun = int(rng.integers(1, len(tokens)))
    return Step(tokens[:begun], tokens[begun:][-4:], logits.astype(np.float32))


def random_config(rng: np.random.Generator, step: Step) -> dict[str, Any]:
    size = len(step.logits)

    def ids(most: int) -> list[int]:
        found: list[int] = rng.integers(0, size, rng.integers(1, most + 1)).tolist()
        return found

    biases = {tuple(ids(2)): float(rng.normal(0, 4)) for _ in range(3)}
    every = {
        "temperature": float(rng.choice([0.01, 0.3, 0.6, 0.8, 1.5, 3, 40, 1e4])),
        "top_k": int(rng.choice([1, 2, 5, 20, size, 10 * size])),
        "top_p": float(rng.choice([0.0, 1e-4, 0.1, 0.5, 0.8, 0.95, 0.999])),
        "min_p": float(rng.choice([0.0, 0.02, 0.1, 0.6, 1.0])),
        "repetition_penalty": float(rng.choice([0.5, 1.05, 1.3, 5])),
        "no_repeat_ngram_size": int(rng.integers(1, 4)),
        "bad_words_ids": [ids(3) for _ in range(3)],
        "sequence_bias": [[list(tokens), bias] for tokens, bias in biases.items()],
        "suppress_tokens": ids(3),
        "begin_suppress_tokens": ids(3),
        "min_new_tokens": int(rng.integers(1, 8)),
        "min_length": int(rng.integers(1, 15)),
    }
    eos = sorted(set(ids(2)))
    asked = {name: value for name, value in every.items() if rng.random() < (0.5 if name in WARPERS else 0.2)}
    return EVERYTHING | {"eos_token_id": eos} | asked


@pytest.mark.parametrize("seed", range(20))
def test_a_thousand_random_settings_draw_as_transformers_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tried = 0
    while tried < 50:
        step = random_step(rng, int(rng.choice([2, 3, 9, 40, 40, 200])))
        config = random_config(rng, step)
        if np.isfinite(processed(config, step).max()):  # else all is forbidden, and transformers has an error
            assert_drawn_as_by_transformers(config, step)
            tried += 1


@pytest.mark.parametrize("size", [151_936, 262_144])
@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
        {"temperature": 0.7, "top_p": 0.8, "repetition_penalty": 1.05},
        {"temperature": 1.5, "min_p": 0.1, "top_k": 10**6},
    ],
)
def test_large_vocabularies_are_drawn_from_as_transformers_does(size: int, asked: dict[str, Any]) -> None:
    rng = np.random.default_rng(size)
    step = Step([5, 6, 7], [8, 9], rng.normal(0, 4, size).astype(np.float32))
    assert_drawn_as_by_transformers(EVERYTHING | asked, step)


@pytest.mark.parametrize("top_p", [0.125, 0.25, 0.5, 0.75, 0.875])
@pytest.mark.parametrize("temperature", [0.25, 1.0, 8.0])
def test_a_nucleus_that_ends_at_an_exact_sum_holds_as_many_as_that_of_transformers(
    top_p: float, temperature: float
) -> None:
    step = Step([1], [], np.array([3, -90, 3, 3, 3, -90, 3, 3, 3, 3], np.float32))
    config = EVERYTHING | {"temperature": temperature, "top_p": top_p, "suppress_tokens": [1, 5]}
    kept = int(np.isfinite(processed(config, step)).sum())
    sampler, drawn = sampler_at(config, step)
    found = set()
    for drawn.value in np.linspace(0, 1, 100):
        found.add(sampler.sample(step.logits, step.history))
    assert found == set(sorted([0, 2, 3, 4, 6, 7, 8, 9])[:kept]) and kept == round(8 * top_p)


@pytest.mark.parametrize("seed", range(4))
def test_greedy_takes_what_transformers_takes(seed: int) -> None:
    rng = np.random.default_rng((9, seed))
    for _ in range(50):
        step = random_step(rng, 40)
        config = {**random_config(rng, step), "do_sample": False}
        asked = {name: value for name, value in config.items() if name not in WARPERS}
        scores = processed(asked, step)
        if np.isfinite(scores.max()):
            sampler, _ = sampler_at(config, step)
            assert sampler.sample(step.logits, step.history) == scores.argmax()


@pytest.mark.parametrize("seed", range(4))
def test_typical_tokens_are_those_that_transformers_finds(seed: int) -> None:
    """Alone and behind top_k; transformers takes it last, ollama before top_p."""
    rng = np.random.default_rng((7, seed))
    for _ in range(50):
        step = random_step(rng, int(rng.choice([2, 5, 40])))
        step.logits += rng.normal(0, 0.01, len(step.logits)).astype(np.float32)  # of equals, its sort leaves open which
        temperature, share = float(rng.choice([0.5, 1, 4])), float(rng.choice([0.1, 0.5, 0.9, 0.99]))
        config = EVERYTHING | {"temperature": temperature, "top_k": int(rng.choice([0, 3, 20]))}
        sampler = Sampler(replace(resolve_params({}, config), typical_p=share))
        sampler._random = drawn = Drawn()  # type: ignore[assignment]
        assert any(
            draws_by(shares(config | {"typical_p": near}, step), sampler, drawn, step)
            for near in (share, share - NEAR, share + NEAR)
        )


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(CONFIGS["mixtral"], tmp_path_factory.mktemp("checkpoint"))


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 1.05, "min_new_tokens": 30, "max_new_tokens": 35},
        {"repetition_penalty": 0.8, "no_repeat_ngram_size": 2},
        {"no_repeat_ngram_size": 1},
        {"min_length": 40, "suppress_tokens": [1, 2, 3], "begin_suppress_tokens": [4, 5]},
        {"sequence_bias": [[[41], 1.5], [[7, 60], -9.0]], "bad_words_ids": [[3], [9, 33], [41, 41]]},
    ],
    ids=lambda asked: "-".join(asked) or "nothing",
)
def test_a_generation_config_leads_to_the_greedy_tokens_that_generate_gives(pair: Pair, asked: dict[str, Any]) -> None:
    their_logits = pair.theirs(torch.tensor([PROMPT])).logits[0, -1]
    ends = [int(their_logits.argmax()), 11, 12]  # the first is what an answer would begin with
    config: dict[str, Any] = {"do_sample": False, "eos_token_id": ends, "max_new_tokens": 60} | asked
    make: Any = GenerationConfig
    made = pair.theirs.generate(torch.tensor([PROMPT]), generation_config=make(**config, pad_token_id=0))
    sampler = Sampler(resolve_params({}, config), ends=set(ends))
    cache, tokens = pair.ours.new_cache(256), list(PROMPT)
    logits = pair.ours.forward(tokens, cache)
    while len(tokens) - len(PROMPT) < config["max_new_tokens"]:
        tokens.append(sampler.sample(logits[-1], tokens))
        if tokens[-1] in ends:
            break
        logits = pair.ours.forward(tokens[-1:], cache)
    assert tokens == made[0].tolist()
