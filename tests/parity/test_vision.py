"""Models that see against transformers: towers, positions and masks of pictures, on tiny random configs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from moeinf.engine.vision.tower_file import kept_of, layers_of
from moeinf.models.layers.protocol import Layers
from moeinf.models.layers.weights import StoredTensor
from moeinf.types import Format
from tests.support.pairs.seeing import SeeingPair
from tests.support.tiny_models import all_configs

CONFIGS = all_configs("SEEING")
TEXT = [5, 17, 3, 88, 41, 2, 60, 9, 33, 75]


@pytest.fixture(scope="module", params=CONFIGS, ids=lambda name: name.replace(" ", "-"))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SeeingPair:
    return SeeingPair(CONFIGS[request.param], tmp_path_factory.mktemp("checkpoint"), tokens=70)


def picture(pair: SeeingPair, rows: int, cols: int, seed: int = 0) -> Any:
    """Of so many rows and columns of tokens."""
    unit = pair.form.unit
    return np.random.default_rng(seed).integers(0, 256, (rows * unit, cols * unit, 3)).astype(np.uint8)


@torch.inference_mode()
def test_the_tower_gives_the_rows_of_the_reference(pair: SeeingPair) -> None:
    for rows, cols in ((3, 4), (1, 5), (6, 2)):
        image = picture(pair, rows, cols)
        given = pair.their_inputs([1, image])
        theirs, ours = pair.reference.rows(pair.theirs, given), torch.from_numpy(pair.rows(image))
        assert theirs.shape == ours.shape and ours.shape[1] == 64 * (1 + pair.vision.tower.deep)
        assert theirs.std() > 0.05
        assert (ours - theirs).abs().max() < 2e-5 * theirs.abs().max().clamp(min=1)


def _rounded(tensor: StoredTensor) -> Tensor:
    """float32 to bfloat16."""
    return torch.from_numpy(tensor.data.view(np.float32)).bfloat16()


def test_a_tower_of_16_bits_loses_its_last_digits_alone(pair: SeeingPair) -> None:
    image, numbers = picture(pair, 6, 7), dict[str, np.ndarray]()
    formats: dict[Format, torch.dtype] = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    for format, dtype in formats.items():
        rounded = {
            name: StoredTensor(_rounded(each).to(dtype).view(torch.uint8).numpy(), format, each.shape)
            for name, each in pair.tensors.items()
        }
        kept = kept_of((each.format, each.shape) for each in rounded.values())
        assert kept == ("f32" if format == "f32" else "bf16")

        def part(prefix: str, found: dict[str, Any] = rounded, kept: Any = kept) -> Layers:
            tensors = {name: each for name, each in found.items() if name.startswith(prefix)}
            return layers_of(pair.kernels, pair.vision.tower.prepared(tensors), kept)

        numbers[format] = pair.vision.tower.rows(part, pair.patches(image))
    floats, found, halves = numbers.values()
    lengths = np.linalg.norm(floats, axis=1) * np.linalg.norm(found, axis=1)
    assert ((floats * found).sum(1) / lengths).min() > 0.9995
    assert not np.array_equal(floats, found) and np.abs(found - halves).max() < 1e-3 * np.abs(floats).max()


@torch.inference_mode()
def test_logits_with_pictures_are_those_of_the_reference(pair: SeeingPair) -> None:
    first, second = picture(pair, 3, 4), picture(pair, 2, 5, seed=1)
    for prompt in (
        [*TEXT, first, *TEXT[:4]],
        [first, *TEXT],
        [*TEXT[:2], first, *TEXT[:3], second, *TEXT],
        [*TEXT[:2], second, 4, first, 7],
        [*TEXT, picture(pair, 1, 13), 8, 9],
    ):
        theirs = pair.theirs(**pair.their_inputs(prompt)).logits[0]
        assert theirs.std() > 0.1, "the comparison means something"
        assert (pair.logits(prompt) - theirs).abs().max() < 1e-4 * theirs.abs().max()


@torch.inference_mode()
def test_a_picture_changes_what_follows_it_alone(pair: SeeingPair) -> None:
    one, other = ([*TEXT, picture(pair, 2, 3, seed), *TEXT] for seed in (1, 2))
    same = (pair.logits(one) - pair.logits(other)).abs().amax(1)
    assert same[: len(TEXT)].max() == 0 and same[-len(TEXT) :].min() > 1e-3


@torch.inference_mode()
def test_chunks_that_do_not_cut_pictures_give_the_same(pair: SeeingPair) -> None:
    prompt = [*TEXT, picture(pair, 3, 4), *TEXT, picture(pair, 2, 2), *TEXT]
    whole, borders = pair.logits(prompt), pair.borders(prompt)
    for cuts in (borders[:1], borders[1:2], [3, *borders[1::3]], [*borders[:2], borders[1] + 1, *borders[3:]]):
        assert torch.equal(pair.logits(prompt, cuts), whole)


@torch.inference_mode()
def test_greedy_tokens_behind_pictures_are_those_of_the_reference(pair: SeeingPair) -> None:
    prompt = [*TEXT[:3], picture(pair, 3, 4), *TEXT]
    theirs = pair.theirs.generate(
        **pair.their_inputs(prompt), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    ids, pictures = pair.laid_out(prompt)
    cache = pair.new_cache(pictures)
    ours = [int(pair.ours.forward(ids, cache)[-1].argmax())]
    for _ in range(23):
        ours.append(int(pair.ours.forward(ours[-1:], cache)[-1].argmax()))
    assert ours == theirs[0, len(ids) :].tolist()


@torch.inference_mode()
def test_logits_with_pictures_on_a_device_are_those_of_the_cpu(pair: SeeingPair) -> None:
    ours, _ = pair.on_device()
    prompt = [*TEXT[:2], picture(pair, 3, 4), *TEXT[:3], picture(pair, 1, 1, seed=1), *TEXT, picture(pair, 2, 2), 7]
    wanted, borders = pair.logits(prompt), pair.borders(prompt)
    for cuts in ([], borders[:4], [borders[1], borders[1] + 3, borders[3] + 1]):
        assert (pair.logits(prompt, cuts, ours) - wanted).abs().max() < 1e-4 * wanted.abs().max()


@torch.inference_mode()
def test_a_recorded_step_goes_on_behind_any_pictures(pair: SeeingPair) -> None:
    """One cache and one program, as a run has them, in turn with pictures of several sizes and without."""
    ours, device = pair.on_device()
    cache = ours.new_cache(256)
    for number, shape in enumerate(((3, 4), (1, 13), None, (3, 4), (2, 2))):
        prompt = [*TEXT[:3], *([picture(pair, *shape)] if shape else []), *TEXT]
        ids, pictures = pair.laid_out(prompt)
        answers = list[list[int]]()
        for model, used in ((ours, cache), (pair.ours, pair.new_cache(()))):
            used.truncate(0)
            used.pictures = pictures
            answer = [int(model.forward(ids, used)[-1].argmax())]
            for _ in range(6):
                answer.append(int(model.forward(answer[-1:], used)[-1].argmax()))
            answers.append(answer)
        assert answers[0] == answers[1], number
    assert device.num_captures == pair.family.tensors.moe.num_layers + 1, "one step, recorded once"
