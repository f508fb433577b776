"""What transformers does not show of DeepSeek's families: the published gates, long caches in 16 bits, odd configs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from moeinf._native import Kernels
from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.gpu.ops import Ops
from moeinf.gpu.program import DecodeProgram
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.family import family_of
from moeinf.models.fields import Fields
from moeinf.models.gpu import latent as device_latent
from moeinf.models.gpu.layers import DeviceLayers
from moeinf.models.gpu.weights import DeviceWeights
from moeinf.models.layers.attention_config import NormConfig
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.latent.mla import LatentAttention, LatentHeads, LatentPart, latent_shapes, parse_latent
from moeinf.models.layers.moe import BlockSite, Moe
from moeinf.models.layers.rope import plain_rope
from moeinf.models.layers.routers import GroupedSoftmaxRouter, SigmoidRouter
from moeinf.models.layers.weights import StoredTensor
from moeinf.types import DType
from tests.oracles.latent import latent_attention
from tests.oracles.torch_matrix import TorchMatrixOps
from tests.oracles.torch_vector import TorchVectorOps
from tests.support.configs.deepseek_v2 import DEEPSEEK_V2
from tests.support.configs.deepseek_v3 import DEEPSEEK_V3
from tests.support.configs.glm4_moe import GLM4
from tests.support.emulated_device import EmulatedDevice
from tests.support.pairs.experts import stored

HIDDEN, EXPERTS, TOKENS = 24, 12, 40


def gate_tensors() -> dict[str, Tensor]:
    torch.manual_seed(3)
    return {
        "norm.weight": torch.rand(HIDDEN) + 0.5,
        "gate.weight": torch.randn(EXPERTS, HIDDEN),
        "gate.e_score_correction_bias": torch.randn(EXPERTS) * 0.5,
    }


def published_gate(
    tensors: dict[str, Tensor],
    hidden: Tensor,
    *,
    sigmoid: bool,
    groups: int,
    used: int,
    top_k: int,
    normalise: bool,
    scaling: float,
) -> Tensor:
    """Weights of every expert [tokens, experts], token by token, after MoEGate.forward of modeling_deepseek.py (V2) and
    Gate.forward of inference/model.py (V3)."""
    weights = torch.zeros(len(hidden), EXPERTS)
    for token, logits in enumerate(hidden @ tensors["gate.weight"].T):
        scores = logits.sigmoid() if sigmoid else logits.softmax(-1)
        choice = scores + tensors["gate.e_score_correction_bias"] if sigmoid else scores
        size = EXPERTS // groups
        rank = [choice[g * size : (g + 1) * size].topk(2 if sigmoid else 1).values.sum() for g in range(groups)]
        allowed = torch.stack(rank).topk(used).indices.tolist()
        open_to = [expert for expert in range(EXPERTS) if expert // size in allowed]
        chosen = sorted(open_to, key=lambda expert: -float(choice[expert]))[:top_k]
        found = scores[chosen]
        if normalise:
            found = found / (found.sum() + 1e-20)
        weights[token, chosen] = found * (scaling if sigmoid or not normalise else 1.0)
    return weights


@pytest.mark.parametrize("groups, used, normalise", [(1, 1, False), (4, 2, False), (4, 2, True), (3, 1, True)])
@pytest.mark.parametrize("sigmoid", [False, True])
def test_routers_choose_and_weigh_as_the_published_code(sigmoid: bool, groups: int, used: int, normalise: bool) -> None:
    tensors = gate_tensors()
    router: Any = SigmoidRouter if sigmoid else GroupedSoftmaxRouter
    config = Moe.parse(
        Fields(
            DEEPSEEK_V2
            | {"n_group": groups, "topk_group": used, "norm_topk_prob": normalise, "routed_scaling_factor": 1.7}
        ),
        3,
        router=router,
        normalise=False,
        corrected=sigmoid,
    )
    layers = NativeLayers(Kernels(1), {name: stored(tensor) for name, tensor in tensors.items()}, "f32")
    site = BlockSite(0, 0, "", NormConfig("norm.weight", 1e-6))
    x = torch.randn(TOKENS, HIDDEN)
    hidden, routing = router(layers, config, site)(x.numpy())
    ours = torch.zeros(TOKENS, EXPERTS).scatter_(1, torch.from_numpy(routing.ids), torch.from_numpy(routing.weights))
    theirs = published_gate(
        tensors,
        torch.from_numpy(hidden),
        sigmoid=sigmoid,
        groups=groups,
        used=used,
        top_k=3,
        normalise=normalise,
        scaling=1.7,
    )
    assert torch.allclose(ours, theirs, atol=1e-6)


# ---- the core of latent attention, at the geometry of the published models

HEADS, RANK, ROTARY, PLAIN, VALUE, SEEN, NEW = 3, 512, 64, 16, 12, 700, 5
Make = Callable[[DType, StoredTensor], tuple[Any, Any]]  # layers, and a tensor of theirs out of a numpy array


def on_cpu(dtype: DType, keys_values: StoredTensor) -> tuple[Any, Any]:
    return NativeLayers(Kernels(1), {"kv_b": cast(Any, keys_values)}, dtype), lambda x: x


def on_device(dtype: DType, keys_values: StoredTensor) -> tuple[Any, Any]:
    device = EmulatedDevice()
    ops = Ops(TorchVectorOps(), TorchMatrixOps())
    weights = DeviceWeights(device, ops, {"kv_b": cast(Any, keys_values)}, {})
    layers = DeviceLayers(weights, dtype, 1024, DecodeProgram(device))
    return layers, torch.from_numpy


@pytest.mark.parametrize("make", [on_cpu, on_device])
@pytest.mark.parametrize("dtype, tolerance", [("f32", 1e-5), ("f16", 4e-3), ("bf16", 4e-2)])
@pytest.mark.parametrize("interleaved, window", [(False, 0), (True, 0), (True, 5), (True, 90)])
def test_latent_attention_over_a_long_cache_is_attention_with_the_keys_and_values_of_every_head(
    make: Make, dtype: DType, tolerance: float, interleaved: bool, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_latent, "_NUMBERS", 2 * HEADS * (RANK + ROTARY))  # pieces of two tokens
    rng = np.random.default_rng(5)
    kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    weights = torch.from_numpy(rng.standard_normal((HEADS, PLAIN + VALUE, RANK)) / RANK**0.5).to(kind)
    data = weights.view(-1).view(torch.uint8).numpy()
    layers, given = make(dtype, StoredTensor(data, dtype, (HEADS * (PLAIN + VALUE), RANK)))
    rope = plain_rope(ROTARY, 1e4, interleaved)
    core = layers.make(LatentPart("kv_b", LatentHeads(HEADS, PLAIN, rope, 0.07, window=window), 0))
    cache = Cache([core.new_state(1024)], 1024)
    rows = rng.standard_normal((SEEN + NEW, RANK + ROTARY)).astype(np.float32)
    queries = rng.standard_normal((NEW, HEADS, PLAIN + ROTARY)).astype(np.float32)
    positions = layers.rotary(rope, 1024)
    core.store(given(rows[:SEEN]), cache, positions(0, SEEN, cache))
    cache.advance(SEEN)
    core.store(given(rows[SEEN:]), cache, positions(SEEN, NEW, cache))
    asked = given(queries.reshape(NEW, -1))
    found = [np.asarray(core.attend(asked[at : at + 3], cache, positions(SEEN, NEW, cache), at)) for at in (0, 3)]
    tables, made = rope.tables(0, SEEN + NEW), weights.float().numpy()
    wanted = latent_attention(queries, rows, made, tables, 0.07, interleaved, window=window)
    assert np.abs(np.concatenate(found) - wanted.reshape(NEW, -1)).max() < tolerance


def test_a_long_prompt_is_attended_with_piece_by_piece() -> None:
    decoder, config = parse_latent(Fields(DEEPSEEK_V2), interleaved=True)
    hidden_size = decoder.attention.hidden_size
    shapes = latent_shapes(decoder, config, 0) | {"model.layers.0.input_layernorm.weight": (hidden_size,)}
    torch.manual_seed(6)
    tensors = {name: stored(torch.randn(shape) / shape[-1] ** 0.5) for name, shape in shapes.items()}
    layers: Any = NativeLayers(Kernels(1), tensors, "f32")
    rope = decoder.attention.rope
    attention: Any = LatentAttention(layers, decoder, config, 0)
    positions = layers.rotary(rope, 512)
    prompt: np.ndarray = np.random.default_rng(8).standard_normal((300, hidden_size)).astype(np.float32)

    def attended(passes: list[int]) -> np.ndarray:
        x: np.ndarray = prompt.copy()
        cache = Cache([attention.new_state(300)], 300)
        for count in passes:
            attention.add_to(x[cache.length : cache.length + count], cache, positions(cache.length, count, cache))
            cache.advance(count)
        return x

    assert np.abs(attended([300]) - attended([100, 100, 99, 1])).max() < 1e-5


# ---- configs


def test_layers_that_predict_further_tokens_are_told_by_name() -> None:
    for config in (DEEPSEEK_V3, GLM4):
        plan = family_of(config).tensors
        names = ["model.layers.3.eh_proj.weight", "model.layers.3.mlp.experts.0.gate_proj.weight"]
        assert all(any(re.fullmatch(p, name) for p in (*plan.ahead, *plan.ignored)) for name in names)
        assert not any(re.fullmatch(p, "model.layers.2.mlp.gate.weight") for p in (*plan.ahead, *plan.ignored))


def test_moe_layer_freq_leaves_dense_layers_between() -> None:
    config = DEEPSEEK_V2 | {"num_hidden_layers": 6, "first_k_dense_replace": 1, "moe_layer_freq": 2}
    plan = family_of(config).tensors
    assert plan.moe.num_layers == 2
    assert [i for i in range(6) if f"model.layers.{i}.mlp.gate.weight" in plan.dense] == [2, 4]


def test_what_is_multiplied_by_head_is_never_quantised() -> None:
    plan = family_of(DEEPSEEK_V3).tensors
    assert "model.layers.0.self_attn.kv_b_proj.weight" not in plan.matrices
    assert "model.layers.0.self_attn.kv_a_proj_with_mqa.weight" in plan.matrices


@pytest.mark.parametrize(
    "config, field, value",
    [
        (DEEPSEEK_V2, "scoring_func", "sigmoid"),
        (DEEPSEEK_V2, "topk_method", "noaux_tc"),
        (DEEPSEEK_V2, "rope_interleave", False),
        (DEEPSEEK_V2, "partial_rotary_factor", 0.5),
        (DEEPSEEK_V3, "scoring_func", "softmax"),
        (DEEPSEEK_V3, "topk_method", "greedy"),
        (DEEPSEEK_V3, "hidden_act", "selu"),
        (GLM4, "scoring_func", "softmax"),
    ],
)
def test_what_changes_the_mathematics_is_refused_by_name(config: dict[str, Any], field: str, value: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=field):
        family_of(config | {field: value})


@pytest.mark.parametrize("fields", [{"n_group": 5}, {"topk_group": 5}, {"topk_group": 1, "num_experts_per_tok": 4}])
def test_groups_that_do_not_fit_are_refused_by_name(fields: dict[str, int]) -> None:
    with pytest.raises(CheckpointError, match="n_group"):
        family_of(DEEPSEEK_V3 | fields)


PUBLISHED = {  # config.json of DeepSeek-V3: 671B parameters, 37B of them active
    "model_type": "deepseek_v3", "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
    "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840, "moe_intermediate_size": 2048,
    "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True,
    "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                            "weight_block_size": [128, 128]},
    "rms_norm_eps": 1e-06, "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
    "tie_word_embeddings": False, "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip


PUBLISHED_GLM = {  # GLM-4.6: 355B parameters with the layer that predicts further tokens, which has 4B
    "model_type": "glm4_moe", "attention_bias": True, "first_k_dense_replace": 3, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 5120, "intermediate_size": 12288, "max_position_embeddings": 202752, "moe_intermediate_size": 1536,
    "n_group": 1, "n_routed_experts": 160, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 96,
    "num_experts_per_tok": 8, "num_hidden_layers": 92, "num_key_value_heads": 8, "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 1000000,
    "routed_scaling_factor": 2.5, "tie_word_embeddings": False, "topk_group": 1, "use_qk_norm": True,
    "vocab_size": 151552,
}  # fmt: skip


def test_sizes_are_those_of_the_published_models() -> None:
    info = family_of(PUBLISHED_GLM).info("bf16")
    assert (info.num_params // 10**9, info.active_params // 10**9) == (352, 33)


def test_sizes_are_those_of_the_published_model_and_the_cache_is_the_compressed_one() -> None:
    info = family_of(PUBLISHED).info("bf16")
    assert (round(info.num_params / 1e9), round(info.active_params / 1e9)) == (671, 38)
    assert info.kv_bytes_per_token == 61 * 576 * 2
