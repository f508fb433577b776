"""Several sequences in one step, and tokens that are tried: each gets the logits that it gets alone, token by token,
bit for bit, in every family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from moeinf._native import Kernels
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.cpu.paged_rows import sequence_pages
from moeinf.models.family import family_of
from moeinf.models.layers.assemble import DecoderFamily
from moeinf.models.layers.decoder import FEW_ROWS, Decoder
from moeinf.models.layers.kv_cache import NewTokens
from moeinf.types import Float32Array, Profiler
from tests.support.checkpoints import random_tensors, scaled
from tests.support.pairs.experts import resident_experts, stored
from tests.support.tiny_models import all_configs

CONFIGS = all_configs()
SCALE = 0.2
CONTEXT = 256
LENGTHS = (3, 75, 18)  # of the prompts: below and beyond what windows, chunks and pools have room for
TRIED = ((3, 1, 8), (8, 2, 1), (1, 6, 2), (2, 3, 4))  # rows of each sequence in each step; one alone is not tried
RIGHT = ((1, 1, 8), (5, 1, 1), (1, 4, 1), (2, 3, 2))  # of these, the first ones, that are tokens of the text
ROWS = ((1, 1, 1), (1, 4, 0), (2, FEW_ROWS, 1), (0, 1, 3), (1, 0, 1))  # of each sequence in each step; 0: it sits out


def decoder_of(config: dict[str, Any], *, threads: int = 2, isa: str = "") -> Decoder:
    family = family_of(config)
    assert isinstance(family, DecoderFamily)
    kernels = Kernels(threads, isa)
    tensors = scaled(random_tensors(config, layout=-1, by_name=True), SCALE)
    dense = {name: stored(tensor) for name, tensor in tensors.items()}
    layers = NativeLayers(kernels, dense, "f32", sequence_pages())
    return family.build(layers, resident_experts(family.tensors, tensors, kernels), Profiler())


def texts(vocab_size: int) -> list[list[int]]:
    """A prompt and what follows it, for each sequence."""
    rng = np.random.default_rng(7)
    following = [max(sum(rows[i] for rows in cut) for cut in (ROWS, RIGHT)) for i in range(len(LENGTHS))]
    sizes = [length + more for length, more in zip(LENGTHS, following, strict=True)]
    return [rng.integers(4, vocab_size, size).tolist() for size in sizes]


def cuts(text: Sequence[int], which: int) -> list[list[int]]:
    """What goes through the layers behind the prompt in each step."""
    at, found = LENGTHS[which], []
    for rows in ROWS:
        found.append(list(text[at : at + rows[which]]))
        at += rows[which]
    return found


@torch.inference_mode()
@pytest.mark.parametrize("name", CONFIGS, ids=lambda name: name.replace(" ", "-"))
def test_each_sequence_gets_what_it_gets_alone(name: str) -> None:
    decoder = decoder_of(CONFIGS[name])
    given = texts(decoder.config.vocab_size)

    def prefilled(text: Sequence[int], which: int) -> tuple[Any, Float32Array]:
        cache = decoder.new_cache(CONTEXT)
        return cache, decoder.forward(text[: LENGTHS[which]], cache)

    alone: list[list[Float32Array]] = []
    for which, text in enumerate(given):
        cache, _ = prefilled(text, which)
        alone.append([decoder.forward(ids, cache) for ids in cuts(text, which) if ids])
    caches = [prefilled(text, which)[0] for which, text in enumerate(given)]
    together: list[list[Float32Array]] = [[] for _ in given]
    for step in range(len(ROWS)):
        parts = [(i, NewTokens(cuts(text, i)[step], caches[i])) for i, text in enumerate(given) if ROWS[step][i]]
        for (i, _), logits in zip(parts, decoder.step([part for _, part in parts]), strict=True):
            together[i].append(logits[None])
    for one, other in zip(alone, together, strict=True):
        for first, second in zip(one, other, strict=True):
            np.testing.assert_array_equal(first, second)


@torch.inference_mode()
@pytest.mark.parametrize("name", CONFIGS, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("sizes", [(70, 81, 66), (9, 30, 16)], ids=["long", "short"])
def test_prompts_that_are_rounded_alike_are_read_together(name: str, sizes: Sequence[int]) -> None:
    decoder = decoder_of(CONFIGS[name])
    rng = np.random.default_rng(3)
    prompts = [rng.integers(4, decoder.config.vocab_size, size).tolist() for size in sizes]
    alone, cut = [], 6  # tokens that a first step leaves
    for prompt in prompts:
        alone.append(decoder.forward(prompt, decoder.new_cache(CONTEXT)))
    caches = [decoder.new_cache(CONTEXT) for _ in prompts]
    for part in (slice(None, -cut), slice(-cut, None)):
        parts = [NewTokens(each[part], kept, len(each)) for each, kept in zip(prompts, caches, strict=True)]
        logits = decoder.step(parts)
    for one, other in zip(alone, logits, strict=True):
        np.testing.assert_array_equal(one[0], other)


@torch.inference_mode()
@pytest.mark.parametrize("name", CONFIGS, ids=lambda name: name.replace(" ", "-"))
def test_tokens_that_are_tried_count_as_far_as_they_are_right(name: str) -> None:
    decoder = decoder_of(CONFIGS[name])
    vocab, numbers = decoder.config.vocab_size, range(len(LENGTHS))
    given = texts(vocab)

    def prefilled(which: int) -> Any:
        cache = decoder.new_cache(CONTEXT)
        decoder.forward(given[which][: LENGTHS[which]], cache)
        return cache

    def part(which: int, at: int, step: int, cache: Any) -> NewTokens:
        rows, right = TRIED[step][which], RIGHT[step][which]
        wrong = [(token + 1) % vocab for token in given[which][at + right : at + rows]]
        return NewTokens([*given[which][at : at + right], *wrong], cache, tried=rows > 1)

    caches, ends = [prefilled(which) for which in numbers], list(LENGTHS)
    found: list[list[Float32Array]] = [[] for _ in numbers]
    for step in range(len(TRIED)):
        parts = [part(which, ends[which], step, caches[which]) for which in numbers]
        every = iter(decoder.step(parts))
        for which, each in enumerate(parts):
            rows = [next(every)[None] for _ in each.ids]
            right = RIGHT[step][which]
            found[which] += rows[:right]
            ends[which] += right
            if each.tried:
                caches[which].commit(right)
    for which in numbers:
        cache = prefilled(which)
        for at, logits in enumerate(found[which], LENGTHS[which]):
            np.testing.assert_array_equal(decoder.forward([given[which][at]], cache), logits)
        assert cache.length == caches[which].length


@torch.inference_mode()
@pytest.mark.parametrize("name", CONFIGS, ids=lambda name: name.replace(" ", "-"))
def test_a_sequence_that_begins_as_another_gets_what_it_gets_alone(name: str) -> None:
    """The other goes on, goes back and goes another way meanwhile, as a third does that begins as the first."""
    decoder, common = decoder_of(CONFIGS[name]), LENGTHS[1] - 5
    first, second = (texts(decoder.config.vocab_size)[1] for _ in range(2))
    second[common:] = [token ^ 1 for token in second[common:]]
    wanted = []
    for text in (first, second):
        cache = decoder.new_cache(CONTEXT)
        decoder.forward(text[: LENGTHS[1]], cache)
        wanted.append([decoder.forward([token], cache) for token in text[LENGTHS[1] :]])
    one, other, third = (decoder.new_cache(CONTEXT) for _ in range(3))
    if not one.rewinds:
        pytest.skip("only what can go back begins as another")
    other.reach = third.reach = LENGTHS[1]
    decoder.forward(first[: LENGTHS[1]], one)
    other.begin_as(one, common)
    decoder.forward(second[common : LENGTHS[1]], other, of_tokens=LENGTHS[1])
    third.begin_as(other, common)
    one.truncate(common)
    one.shared.write_from(common)
    third.truncate(20)
    third.shared.write_from(20)
    decoder.forward(first[common : LENGTHS[1]], one, of_tokens=LENGTHS[1])
    for i, (ours, theirs) in enumerate(zip(first[LENGTHS[1] :], second[LENGTHS[1] :], strict=True)):
        found = decoder.step([NewTokens([ours], one), NewTokens([theirs], other)])
        np.testing.assert_array_equal(found[:1], wanted[0][i])
        np.testing.assert_array_equal(found[1:], wanted[1][i])
    decoder.forward(first[20 : LENGTHS[1]], third, of_tokens=LENGTHS[1])
    np.testing.assert_array_equal(decoder.forward(first[LENGTHS[1] : LENGTHS[1] + 1], third), wanted[0][0])
