"""gpt-oss as it is shipped, with experts in MXFP4, against transformers over the weights that these stand for."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
import safetensors.torch
import torch

from moeinf.models.family import family_of
from tests.support.configs.gpt_oss import GPT_OSS
from tests.support.pairs.decoders import PROMPT, Pair
from tests.support.pairs.streamed import pulled_pair, smallest


@torch.inference_mode()
@pytest.mark.parametrize("size", [1, 17], ids=["token by token", "at once"])
def test_logits_are_those_of_transformers_but_for_the_rounding_of_activations(size: int, tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    folder = tmp_path / "shipped"
    pair = Pair(GPT_OSS, folder)
    parameters, generator = dict(pair.theirs.named_parameters()), torch.Generator().manual_seed(3)
    for name in [name for name in pair.tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, cols, rows = pair.tensors.pop(name).shape
        blocks = torch.randint(256, (experts, rows, cols // 32, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(121, 126, (experts, rows, cols // 32), dtype=torch.uint8, generator=generator)
        parameters[name].copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
        pair.tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    safetensors.torch.save_file(pair.tensors, folder / "model.safetensors", metadata={"format": "pt"})
    pair.config["quantization_config"] = {"quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(pair.config))
    pair.plan = family_of(pair.config).tensors
    theirs = pair.theirs(torch.tensor([PROMPT])).logits[0]
    model = pulled_pair(folder, tmp_path / "home")
    assert [tensor.dtype for tensor in model.manifest.layout.tensors] == ["mxfp4"] * 3 + ["f32"] * 3
    with closing(smallest(pair, model)) as run:
        chunks = [PROMPT[at : at + size] for at in range(0, len(PROMPT), size)]
        ours = torch.cat([torch.from_numpy(run.network.forward(chunk, run.cache, last_only=False)) for chunk in chunks])
    assert (ours - theirs).norm() / theirs.norm() < 0.02
