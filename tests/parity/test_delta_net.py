"""Gated DeltaNet: chunks against the recurrence as it is written, and what becomes of its state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moeinf.models.cpu.math import NumpyMath
from moeinf.models.gpu.math import TorchMath
from moeinf.models.layers.array_math import ArrayMath
from moeinf.models.layers.recurrent.delta_net import CHUNK, DeltaRule
from moeinf.models.layers.recurrent.state import RecurrentState
from tests.support.configs.qwen3_next import NEXT
from tests.support.pairs.decoders import PROMPT, Pair, logits

FLOATS = np.float32


def inputs(tokens: int, decay: float) -> list[Any]:
    """Of 2 key heads, 6 value heads, key_dim 16 and value_dim 8; decay: the largest, as a logarithm."""
    random = np.random.default_rng(3)
    q, k = (random.standard_normal((tokens, 2, 16)) for _ in range(2))
    k[tokens // 2 :] = k[tokens // 2]  # alike, so that every token takes back what those before it wrote
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    v = random.standard_normal((tokens, 6, 8))
    decays, rate = -decay * random.random((tokens, 6)), random.random((tokens, 6))
    return [x.astype(FLOATS) for x in (q, k, v, decays, rate, random.standard_normal((6, 16, 8)))]


def recurrence(q: Any, k: Any, v: Any, decay: Any, rate: Any, state: Any) -> tuple[Any, Any]:
    """The formula of delta_net.py's first lines, token by token, in float64."""
    q, k = (np.repeat(x, 3, axis=1).astype(np.float64) for x in (q, k))
    out = np.empty(v.shape)
    state = state.astype(np.float64)
    for t in range(len(q)):
        for head in range(v.shape[1]):
            state[head] *= np.exp(decay[t, head])
            lacking = v[t, head] - state[head].T @ k[t, head]
            state[head] += rate[t, head] * np.outer(k[t, head], lacking)
            out[t, head] = state[head].T @ q[t, head]
    return out, state


@pytest.mark.parametrize("decay", [0.0, 0.05, 30.0])
@pytest.mark.parametrize("tokens", [1, 2, CHUNK, 2 * CHUNK + 9])
@pytest.mark.parametrize("math", [NumpyMath(), TorchMath(torch.device("cpu"))], ids=["numpy", "torch"])
def test_chunks_give_what_the_recurrence_gives(math: ArrayMath, tokens: int, decay: float) -> None:
    given = inputs(tokens, decay)
    out, state = recurrence(*given)
    new_state = math.zeros(state.shape)
    rule: Any = DeltaRule(math)
    ours = rule(*(math.of_host(x) for x in given), new_state)
    assert np.abs(np.asarray(ours) - out).max() < 1e-4
    assert np.abs(np.asarray(new_state) - state).max() < 1e-4


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(NEXT, Path(tmp_path_factory.mktemp("checkpoint")))


class GivenUp(Exception):
    pass


@torch.inference_mode()
def test_a_pass_that_is_given_up_leaves_the_cache_as_it_was(pair: Pair) -> None:
    layers = iter(range(3))

    def give_up() -> None:
        if next(layers, None) is None:
            raise GivenUp

    cache, undisturbed = pair.ours.new_cache(64), pair.ours.new_cache(64)
    for each in (cache, undisturbed):
        pair.ours.forward(PROMPT, each)
    with pytest.raises(GivenUp):
        pair.ours.forward([1, 2, 3], cache, give_up)
    for token in (5, 6):
        assert np.array_equal(pair.ours.forward([token], cache), pair.ours.forward([token], undisturbed))


@torch.inference_mode()
def test_a_state_that_is_truncated_begins_anew(pair: Pair) -> None:
    cache = pair.ours.new_cache(64)
    first = pair.ours.forward(PROMPT, cache)
    assert cache.truncate(len(PROMPT)) == len(PROMPT)
    assert cache.truncate(5) == 0, "recurrent states cannot go back"
    assert np.array_equal(pair.ours.forward(PROMPT, cache), first)


@torch.inference_mode()
def test_a_prompt_of_several_chunks_gives_the_logits_of_transformers(tmp_path: Path) -> None:
    pair = Pair(NEXT | {"num_hidden_layers": 2, "initializer_range": 0.1}, tmp_path)  # tame: rounding grows with length
    prompt = np.random.default_rng(1).integers(0, 97, 3 * CHUNK + 11).tolist()
    theirs = pair.theirs(torch.tensor([prompt])).logits[0]
    assert (logits(pair.ours, [prompt]) - theirs).abs().max() < 1e-4


def test_model_info_tells_what_the_states_take(pair: Pair) -> None:
    states = [state for state in pair.ours.new_cache(8).states if isinstance(state, RecurrentState)]
    arrays = [array for s in states for array in (s.conv, s.new_conv, s.heads, s.new_heads)]
    assert pair.info.state_bytes == sum(array.nbytes for array in arrays)
    attended = len(pair.ours.new_cache(8).states) - len(states)
    assert pair.info.kv_bytes_per_token == attended * 2 * 2 * 32 * 4  # of keys and values, 2 heads of 32, float32
