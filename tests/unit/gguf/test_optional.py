"""What llama.cpp takes as optional, or as saying nothing: biases of attention, and numbers that mean none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moeinf.errors import CheckpointError
from moeinf.gguf.config import config_of
from moeinf.gguf.header import Gguf
from tests.support.example_gguf import SUPPORTED, beside, example, placed, refusal, saying

_INPUTS, _OUTPUT = ("attn_q", "attn_k", "attn_v"), ("attn_output",)
# Of which biases of attention are no matter of a config, or which have a config that refuses them.
_WITHOUT = {
    "arctic",
    "bailingmoe",
    "bailingmoe2",
    "bailingmoe3",
    "chatglm",
    "dbrx",
    "deepseek2",
    "deepseek32",
    "deepseek4",
    "deepseek41",
    "dots3note",
    "ernie4_5",
    "ernie4_5-moe",
    "exaone-moe",
    "glm-dsa",
    "glm4",
    "glm4moe",
    "glm5-next",
    "grok",
    "hy_v4",
    "jamba",
    "kimi-k3",
    "kimi-linear",
    "lfm2moe",
    "llama",
    "maple",
    "mimo2",
    "minimax-01",
    "minimax-m2",
    "minimax-m3",
    "mistral4",
    "nemotron_h_moe",
    "phi3",
    "qwen2",
    "smallthinker",
    "starcoder2",
}
# Which may have a bias of the output alone, in llama.cpp too.
_OUTPUT_ALONE = {
    "smollm3",
    "ernie4_5-moe",
    "granite",
    "granite_swa",
    "granitehybrid",
    "granitemoe",
    "llama",
    "nemotron_h_moe",
}


def biased(gguf: Gguf, *projections: str) -> tuple[Gguf, set[str]]:
    """The file with biases of these projections alone, in every layer, and their names."""
    ends = tuple(f".{each}.bias" for each in (*_INPUTS, *_OUTPUT))
    bare = replace(gguf, tensors={name: each for name, each in gguf.tensors.items() if not name.endswith(ends)})
    added = {
        tensor.name.replace(".weight", ".bias"): tensor.shape[:1]
        for tensor in bare.tensors.values()
        if tensor.name.endswith(tuple(f".{each}.weight" for each in projections)) and tensor.name.count(".") == 3
    }
    return beside(bare, *added.items()), set(added)


@pytest.mark.parametrize("architecture", SUPPORTED)
@pytest.mark.parametrize("projections", [_INPUTS, _OUTPUT, (*_INPUTS, *_OUTPUT)], ids="+".join)
def test_biases_of_attention_are_used_in_any_combination_or_refused(
    architecture: str, projections: tuple[str, ...]
) -> None:
    gguf, names = biased(example(architecture), *projections)
    if projections == _OUTPUT and architecture not in _OUTPUT_ALONE:
        if names:
            missed = (
                "attn_q.bias" if architecture == "qwen2" else "attn_output.bias"
            )  # which has the others in any case
            assert f".{missed}'" in refusal(gguf)
    elif architecture in _WITHOUT or (architecture == "qwen2moe" and projections != _INPUTS):
        try:
            assert names <= placed(gguf).tensors()
        except CheckpointError:
            refusal(gguf)
    else:
        assert names and names <= placed(gguf).tensors()


@pytest.mark.parametrize("projection", [*_INPUTS, "attn_q+attn_v"])
def test_a_bias_of_only_some_of_queries_keys_and_values_is_refused_by_its_name(projection: str) -> None:
    gguf, _ = biased(example("qwen3moe"), *projection.split("+"))
    assert ".bias'" in refusal(gguf)


@pytest.mark.parametrize("architecture", SUPPORTED)
def test_one_group_of_experts_is_none(architecture: str) -> None:
    gguf = example(architecture)
    one = saying(gguf, {"expert_group_count": 1, "expert_group_used_count": 1, "expert_weights_scale": 1.0})
    unscaled = saying(gguf, {"expert_weights_scale": 1.0})
    ungrouped = saying(unscaled, {"expert_group_count": 0, "expert_group_used_count": 0})
    assert config_of(one) == config_of(ungrouped)
    placed(one)


@pytest.mark.parametrize("architecture", SUPPORTED)
def test_several_groups_of_experts_are_in_the_config_or_refused(architecture: str) -> None:
    gguf = saying(example(architecture), {"expert_group_count": 2, "expert_group_used_count": 1})
    try:
        assert 2 in (config_of(gguf).get("n_group"), config_of(gguf).get("num_expert_groups"))
    except CheckpointError as error:
        assert "expert_group" in str(error)


@pytest.mark.parametrize("architecture", SUPPORTED)
def test_without_an_output_matrix_the_embedding_is_taken(architecture: str) -> None:
    gguf = example(architecture)
    tied = {name: tensor for name, tensor in gguf.tensors.items() if name not in ("output.weight", "output.bias")}
    places = placed(replace(gguf, tensors=tied))
    assert "token_embd.weight" in places.tensors() and not any("lm_head" in name for name in places.dense)


@pytest.mark.parametrize(("kind", "pooling"), [(0, None), (1, "mean"), (3, "last")])
def test_how_states_become_a_vector_is_in_the_config(kind: int, pooling: str | None) -> None:
    assert config_of(saying(example("qwen3moe"), {"pooling_type": kind})).get("pooling") == pooling
    assert "qwen3moe.pooling_type = 4" in refusal(saying(example("qwen3moe"), {"pooling_type": 4}))


def test_experts_of_minicpm_are_read_though_the_converter_knows_none() -> None:
    """llama.cpp runs such files."""
    gguf = example("minicpm")
    left = {name: each for name, each in gguf.tensors.items() if ".ffn_" not in name or "norm" in name}
    added = [
        (f"blk.{layer}.ffn_{name}.weight", shape)
        for layer in range(3)
        for name, shape in (
            ("gate_inp", (8, 64)),
            ("gate_exps", (8, 48, 64)),
            ("up_exps", (8, 48, 64)),
            ("down_exps", (8, 64, 48)),
        )
    ]
    mixture = saying(beside(replace(gguf, tensors=left), *added), {"expert_count": 8, "expert_used_count": 2})
    config = config_of(mixture)
    assert (config["num_experts"], config["num_experts_per_tok"], config["intermediate_size"]) == (8, 2, 48)
    assert {name for name, _ in added} <= placed(mixture).tensors()
