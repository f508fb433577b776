"""Adapters that PEFT makes, merged while a checkpoint is pulled, against PEFT's own computation with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import safetensors.torch
import torch

from moeinf.config.pull_options import PullOptions
from moeinf.pull.pull import pull
from tests.support.pairs.decoders import CONFIGS, PROMPT, logits
from tests.support.pairs.pulled import Notes, built, change, written

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "attention": ("qwen3_moe", {"target_modules": ATTENTION}),
    "by the root of the rank": ("qwen3_moe", {"target_modules": ATTENTION, "use_rslora": True}),
    "ranks and scales of their own": (
        "qwen3_moe",
        {
            "target_modules": ATTENTION,
            "rank_pattern": {"q_proj": 6, r"layers\.1\.self_attn\.v_proj": 2},
            "alpha_pattern": {"self_attn.o_proj": 3, r"layers\.[02]\.self_attn\.[qkv]_proj": 7},
        },
    ),
    "lengths": ("qwen3_moe", {"target_modules": ATTENTION, "use_dora": True}),
    "embedding and head": ("qwen3_moe", {"target_modules": ["embed_tokens", "lm_head", "q_proj"]}),
    "a head of its own": ("qwen3_moe", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
    "biases": ("qwen2_moe", {"target_modules": ATTENTION, "bias": "all"}),
    "shared expert": ("qwen2_moe", {"target_modules": ["gate_proj", "up_proj", "down_proj", "shared_expert_gate"]}),
    "experts": ("qwen3_moe", {"target_modules": ["q_proj"], "target_parameters": EXPERTS}),
    "one matrix of experts": ("qwen3_moe", {"target_modules": [], "target_parameters": EXPERTS[1:]}),
    "experts and router": (
        "mixtral",
        {"target_modules": ["v_proj"], "target_parameters": [*EXPERTS, "mlp.gate.weight"]},
    ),
    "experts, the inputs first": ("gpt_oss", {"target_modules": ATTENTION, "target_parameters": EXPERTS}),
    "latent attention": (
        "deepseek_v3",
        {"target_modules": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"], "target_parameters": EXPERTS},
    ),
}


def adapted(config: dict[str, Any], folder: Path, options: dict[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    """PEFT's model over random weights of both; folder/checkpoint and folder/adapter have them."""
    theirs = written(config, folder / "checkpoint")
    made = peft.get_peft_model(theirs, peft.LoraConfig(**{"r": 4, "lora_alpha": 10, **options}))
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.requires_grad:
                scale = 0.2 if "lora_" in name and "magnitude" not in name else 0.05
                parameter.add_(torch.randn_like(parameter) * scale)
    made.eval().save_pretrained(str(folder / "adapter"))
    if dtype != torch.float32:
        path = folder / "adapter" / "adapter_model.safetensors"
        safetensors.torch.save_file({k: v.to(dtype) for k, v in safetensors.torch.load_file(path).items()}, path)
    return made


@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_logits_are_those_of_peft(case: str, tmp_path: Path) -> None:
    family, options = CASES[case]
    with torch.inference_mode(mode=False):
        theirs = adapted(CONFIGS[family], tmp_path, options)
    notes = Notes()
    stored = pull(
        str(tmp_path / "checkpoint"),
        PullOptions(lora=str(tmp_path / "adapter")),
        home=tmp_path / "home",
        progress=notes,
    )
    assert stored.name == "checkpoint:adapter"
    assert any("(rank " in line and str(tmp_path / "adapter") in line for line in notes.lines)
    wanted = theirs(torch.tensor([PROMPT])).logits[0]
    with theirs.disable_adapter():
        without = theirs(torch.tensor([PROMPT])).logits[0]
    assert (wanted - without).abs().max() > 0.1, "the adapter changes something"
    assert (logits(built(stored), [PROMPT]) - wanted).abs().max() < 1e-4


def test_numbers_are_rounded_once(tmp_path: Path) -> None:
    """In a checkpoint of bf16: those of f32, rounded. PEFT rounds products first where the adapter is in bf16."""
    theirs = adapted(CONFIGS["qwen3_moe"], tmp_path, {"target_modules": ["q_proj"]})
    change(tmp_path / "checkpoint", lambda tensors: {name: each.bfloat16() for name, each in tensors.items()})
    stored = pull(str(tmp_path / "checkpoint"), PullOptions(lora=str(tmp_path / "adapter")), home=tmp_path / "home")
    name = "model.layers.0.self_attn.q_proj"
    layer = theirs.base_model.model.get_submodule(name)
    delta = layer.lora_B["default"].weight @ layer.lora_A["default"].weight * layer.scaling["default"]
    wanted = (layer.base_layer.weight.bfloat16().float() + delta).bfloat16()
    found = safetensors.torch.load_file(stored.dense_path)[f"{name}.weight"]
    assert torch.equal(found, wanted)


def test_experts_one_by_one(tmp_path: Path) -> None:
    """As PEFT named them where transformers had a layer for each, in checkpoints of either form."""
    folder = tmp_path
    adapted(CONFIGS["qwen3_moe"], folder, {"target_modules": [], "target_parameters": EXPERTS})
    fused = safetensors.torch.load_file(folder / "adapter" / "adapter_model.safetensors")
    alone, experts = {}, CONFIGS["qwen3_moe"]["num_experts"]
    for name, a in fused.items():
        if not name.endswith("lora_A.weight"):
            continue
        b = fused[name.replace("lora_A", "lora_B")]
        module = name.replace(".base_layer", "").removesuffix(".lora_A.weight")
        a, b = a.reshape(experts, 4, -1), b.reshape(len(b), 4, experts)
        half = len(b) // 2
        parts = {"down_proj": slice(None)}
        if ".base_layer" in name:
            parts = {"gate_proj": slice(0, half), "up_proj": slice(half, None)}
        for part, rows in parts.items():
            for expert in range(experts):
                alone[f"{module}.{expert}.{part}.lora_A.weight"] = a[expert].clone()
                alone[f"{module}.{expert}.{part}.lora_B.weight"] = b[rows, :, expert].clone()
    (folder / "alone").mkdir()
    safetensors.torch.save_file(alone, folder / "alone" / "adapter_model.safetensors")
    config = (folder / "adapter" / "adapter_config.json").read_bytes()
    (folder / "alone" / "adapter_config.json").write_bytes(config)
    models = [
        pull(str(folder / "checkpoint"), PullOptions(lora=str(folder / lora)), home=folder / "home")
        for lora in ("adapter", "alone")
    ]
    found, wanted = (logits(built(each), [PROMPT]) for each in models)
    assert np.array_equal(found, wanted)
