"""Layers that guess at tokens, against transformers' model of one such layer, which is given what they make of a token
and of what was before it (vLLM's deepseek_mtp.py and qwen3_next_mtp.py, and llama.cpp's graphs, make the same)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.family import family_of
from moeinf.models.layers.assemble import DecoderFamily
from moeinf.models.mtp import KNOWN, MtpDecoder, mtp_config
from moeinf.pull.checkpoint.tensor_names import plan_name
from moeinf.types import Profiler
from tests.support.configs.deepseek_v3 import DEEPSEEK_V3
from tests.support.configs.glm4_moe import GLM4
from tests.support.pairs.decoders import CONFIGS, PROMPT, Pair
from tests.support.pairs.experts import resident_experts, stored
from tests.support.tiny_models import reference

FAMILIES = {name: CONFIGS[name] for name in ("qwen3_next", "qwen3_5_moe", "glm4_moe_lite")} | {
    "deepseek_v3": DEEPSEEK_V3,
    "glm4_moe": GLM4,
}


def norm(x: torch.Tensor, weight: torch.Tensor, config: dict[str, Any], of: str) -> torch.Tensor:
    eps = config["rms_norm_eps"]
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (weight + (1 if of.startswith("qwen") else 0))


@torch.inference_mode()
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_logits_and_what_a_further_guess_is_made_of_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    pair = Pair(FAMILIES[name], tmp_path / "model")
    config = mtp_config(pair.config)
    torch.manual_seed(8)
    of: Any = config["of"]
    theirs = reference(of)
    theirs.save_pretrained(tmp_path / "layer")
    size = pair.ours.config.attention.hidden_size
    plan = family_of(config).tensors
    own = {"mtp.enorm.weight": torch.randn(size) * 0.1, "mtp.hnorm.weight": torch.randn(size) * 0.1}
    if not name.startswith("qwen"):
        own = {key: weight + 1 for key, weight in own.items()}
    own["mtp.eh_proj.weight"] = torch.randn(size, 2 * size) / size**0.5
    saved = safetensors.torch.load_file(tmp_path / "layer" / "model.safetensors")
    tensors = {plan_name(key, plan): tensor for key, tensor in saved.items()} | own
    family = family_of(config)
    assert isinstance(family, DecoderFamily) and plan.dense.keys() <= tensors.keys()
    layers = NativeLayers(pair.kernels, {key: stored(tensors[key]) for key in plan.dense}, "f32")
    layer = family.build(layers, resident_experts(plan, tensors, pair.kernels), Profiler())
    assert isinstance(layer, MtpDecoder)
    layer.lend(pair.ours)

    hidden = list[torch.Tensor]()
    cache = pair.ours.new_cache(64)
    cache.on_hidden = lambda length, rows: hidden.append(torch.from_numpy(rows.copy()))
    for chunk in (PROMPT[:9], PROMPT[9:]):
        pair.ours.forward(chunk, cache)
    given = torch.cat(hidden)
    seen = pair.theirs(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states[-1][0]
    assert (given - seen).abs().max() < 1e-4, "the head is given what is told"

    text = of.get("text_config") or of
    embedding = pair.theirs.get_input_embeddings().weight
    token = norm(embedding[PROMPT[1:]], own["mtp.enorm.weight"], text, name)
    before = norm(seen[:-1], own["mtp.hnorm.weight"], text, name)
    theirs.get_output_embeddings().weight = pair.theirs.get_output_embeddings().weight
    rows = torch.cat([token, before], 1) @ own["mtp.eh_proj.weight"].T
    wanted = theirs(inputs_embeds=rows[None], output_hidden_states=True)
    assert wanted.logits.std() > 0.1, "the comparison means something"
    own_cache = layer.new_cache(64)
    for at in range(0, len(PROMPT) - 1, 5):
        part = slice(at, min(at + 5, len(PROMPT) - 1))
        logits, after = layer.guess(PROMPT[1:][part], given[:-1][part].numpy(), own_cache)
        assert (torch.from_numpy(logits[0]) - wanted.logits[0, part.stop - 1]).abs().max() < 1e-3
        assert (torch.from_numpy(after[0]) - wanted.hidden_states[-1][0, part.stop - 1]).abs().max() < 1e-3


def test_every_family_that_is_run_is_compared() -> None:
    assert FAMILIES.keys() == {name.removesuffix("_text") for name in KNOWN}
