"""Rotary positions are those of transformers' own functions, for every type, in both spellings of a config."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from moeinf.errors import CheckpointError, MoeinfError, UnsupportedModelError
from moeinf.models.fields import Fields
from moeinf.models.layers.rope import Rope, mscale, partial_rotary, reach, rope_of

HEAD_DIM, CONTEXT = 32, 2048
LONGROPE = {"short_factor": [1 + i / 10 for i in range(16)], "long_factor": [2.0 + i for i in range(16)]}
DESCRIPTIONS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256},
    "yarn, not truncated": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 256,
        "truncate": False,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    },
    "yarn, mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 512,
        "mscale": 1.0,
        "mscale_all_dim": 0.707,
    },
    "yarn, attention_factor": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 256,
        "attention_factor": 1.5,
    },
    "longrope": LONGROPE | {"rope_type": "longrope", "original_max_position_embeddings": 128},
    "longrope, factor": LONGROPE | {"rope_type": "longrope", "original_max_position_embeddings": 128, "factor": 4.0},
    "longrope, attention_factor": LONGROPE
    | {"rope_type": "longrope", "original_max_position_embeddings": 128, "attention_factor": 1.2},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    "llama3, nothing between fast and slow": {  # as Llama 4 Scout
        "rope_type": "llama3",
        "factor": 16.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 1.0,
        "original_max_position_embeddings": 256,
    },
}


def parsed(**config: Any) -> Rope:
    return rope_of(Fields(config), HEAD_DIM, 1e4, CONTEXT)


@pytest.mark.parametrize("description", DESCRIPTIONS.values(), ids=DESCRIPTIONS)
@pytest.mark.parametrize("room", [100, CONTEXT, 3 * CONTEXT])
def test_frequencies_and_scale_are_those_of_transformers(description: dict[str, Any], room: int) -> None:
    from transformers import MixtralConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = MixtralConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        head_dim=HEAD_DIM,
        max_position_embeddings=CONTEXT,
        rope_parameters=description | {"rope_theta": 5e4},
    )
    frequencies, scale = ROPE_INIT_FUNCTIONS[description["rope_type"]](config, "cpu", seq_len=room)
    ours = parsed(rope_parameters=description | {"rope_theta": 5e4}).within(room, room)
    np.testing.assert_allclose(ours.frequencies, frequencies.numpy(), rtol=2e-6)
    assert ours.scale == pytest.approx(scale)


@pytest.mark.parametrize("description", DESCRIPTIONS.values(), ids=DESCRIPTIONS)
def test_old_and_new_spellings_mean_the_same(description: dict[str, Any]) -> None:
    old = {"type" if key == "rope_type" else key: value for key, value in description.items()}
    one, other = parsed(rope_parameters=description | {"rope_theta": 5e4}), parsed(rope_scaling=old, rope_theta=5e4)
    assert np.array_equal(one.frequencies, other.frequencies) and one.scale == other.scale


def test_the_published_phi_pairs_each_list_of_factors_with_its_own_scale() -> None:
    rope = parsed(
        rope_scaling=LONGROPE | {"type": "longrope", "short_mscale": 1.1, "long_mscale": 1.3},
        original_max_position_embeddings=128,
    )
    plain = parsed().frequencies
    for room, factors, scale in ((128, "short_factor", 1.1), (129, "long_factor", 1.3)):
        np.testing.assert_allclose(rope.within(room, room).frequencies, plain / np.array(LONGROPE[factors]), rtol=1e-6)
        assert rope.within(room, room).scale == scale


def test_a_sequence_has_the_same_positions_however_it_comes() -> None:
    rope = parsed(rope_parameters=DESCRIPTIONS["dynamic"]).within(2 * CONTEXT, 2 * CONTEXT)
    whole = rope.tables(0, 40)[0]
    assert np.array_equal(whole, np.concatenate([rope.tables(at, 8)[0] for at in range(0, 40, 8)]))


def test_the_same_kind_of_positions_is_the_same_object() -> None:
    for name in ("dynamic", "longrope"):
        rope = parsed(rope_parameters=DESCRIPTIONS[name])
        assert rope.within(7000, 5000) is rope.within(7000, 6000)
        assert rope.within(7000, 10) is rope


def test_a_sequence_may_be_as_long_as_its_positions_were_stretched() -> None:
    def longest(**description: Any) -> int:
        return reach(Fields({"rope_scaling": description}), 2048)

    assert longest(type="yarn", factor=4.0) == 8192, "a config that names the trained length, as Qwen's"
    assert longest(type="yarn", factor=4.0, original_max_position_embeddings=512) == 2048, "one stretched before"
    assert longest(type="dynamic", factor=2.0) == 4096
    assert longest(type="yarn", factor=1e15) == 1 << 30
    assert longest(type="linear", factor=4.0) == longest() == 2048


def test_a_part_of_a_head_is_turned() -> None:
    assert partial_rotary(Fields({"rope_parameters": {"partial_rotary_factor": 0.5}}), 24) == 12
    assert partial_rotary(Fields({"partial_rotary_factor": 0.25}), 32) == 8
    assert partial_rotary(Fields({}), 24, default=0.5) == 12
    with pytest.raises(CheckpointError, match="partial_rotary_factor"):
        partial_rotary(Fields({"partial_rotary_factor": 1.5}), 24)


def test_the_scale_of_yarn() -> None:
    assert mscale(1.0) == 1.0
    assert mscale(40.0, 0.707) == pytest.approx(0.1 * 0.707 * np.log(40) + 1)


@pytest.mark.parametrize(
    ("config", "error", "match"),
    [
        ({"rope_scaling": {"type": "mrope"}}, UnsupportedModelError, "rope_scaling.*'mrope'.*longrope"),
        ({"rope_scaling": {"type": ["yarn"]}}, UnsupportedModelError, "rope_scaling"),
        ({"rope_scaling": {"type": "linear", "factor": 2, "truncate": True}}, UnsupportedModelError, "truncate"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, UnsupportedModelError, "full_attention"),
        ({"rope_scaling": {"type": "linear"}}, CheckpointError, "factor is missing"),
        ({"rope_scaling": [1]}, CheckpointError, "rope_scaling"),
        ({"rope_scaling": LONGROPE | {"type": "longrope", "short_factor": [1.0]}}, CheckpointError, "short_factor"),
        ({"rope_scaling": DESCRIPTIONS["llama3"] | {"low_freq_factor": 4.5}}, CheckpointError, "low_freq_factor"),
        ({"rope_theta": 0}, CheckpointError, "rope_theta"),
        ({"rope_theta": 1.0, "rope_scaling": DESCRIPTIONS["yarn"]}, CheckpointError, "rope_theta"),
    ],
    ids=str,
)
def test_what_is_not_understood_is_refused_by_name(
    config: dict[str, Any], error: type[MoeinfError], match: str
) -> None:
    with pytest.raises(error, match=match):
        parsed(**config)
