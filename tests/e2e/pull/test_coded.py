"""Quantised checkpoints of the Hub: what is stored of them is what the published formats define, or the line says."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from moeinf._native import dequantise
from moeinf.config import RuntimeConfig
from moeinf.engine.completion import GenerationStats
from moeinf.engine.model import Model
from moeinf.pull.pull import pull
from moeinf.store.dense import dense_tensors
from moeinf.store.library import StoredModel
from moeinf.store.verify import verify
from moeinf.types import Float32Array, Format, TensorSpec
from tests.oracles import coded_weights as oracle
from tests.oracles.coded_weights import Coded
from tests.support.checkpoints import CONFIG, Checkpoint, random_tensors, write_checkpoint

TINY = CONFIG | {"hidden_size": 128, "head_dim": 32, "moe_intermediate_size": 256, "num_experts": 4, "vocab_size": 61}
PROMPT = "a b b a b a a a b"


def compressed(format: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "symmetric": True} | weights}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*mlp.gate$"],
    }


PACK, GPTQ = "pack-quantized", {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "load_in_8bit": False}
STATIC = {"quant_method": "fp8", "activation_scheme": "static"}
FLOAT8 = partial(compressed, "float-quantized", num_bits=8, type="float")
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}

# name -> what makes a matrix, quantization_config, the stored format, whether it holds the weights exactly
SCHEMES: dict[str, tuple[Callable[..., Coded], dict[str, Any], Format, bool]] = {
    "w4 group 32": (oracle.packed, compressed(PACK, group_size=32), "q4_0", True),
    "w4 group 64": (partial(oracle.packed, group=64), compressed(PACK, group_size=64), "q4_0", True),
    "w4 group 128": (partial(oracle.packed, group=128), compressed(PACK, group_size=128), "q4_0", True),
    "w4 f16": (partial(oracle.packed, dtype=torch.float16), compressed(PACK, group_size=32), "q4_0", True),
    "w4 zero points": (
        partial(oracle.packed, symmetric=False),
        compressed(PACK, group_size=32, symmetric=False),
        "q5_0",
        True,
    ),
    "w4 act-order": (partial(oracle.packed, act_order=True), compressed(PACK, group_size=32), "q8_0", False),
    "w4 group 16": (partial(oracle.packed, group=16), compressed(PACK, group_size=16), "q8_0", False),
    "w4 f32 scales": (partial(oracle.packed, dtype=torch.float32), compressed(PACK, group_size=32), "q4_0", False),
    "w8 group 32": (partial(oracle.packed, bits=8), compressed(PACK, num_bits=8, group_size=32), "q8_0", True),
    "w8 zero points": (
        partial(oracle.packed, bits=8, symmetric=False),
        compressed(PACK, num_bits=8, group_size=32, symmetric=False),
        "q8_0",
        False,
    ),
    "int8": (
        partial(oracle.packed, bits=8, group=64, in_words=False),
        compressed("int-quantized", num_bits=8, group_size=64),
        "q8_0",
        True,
    ),
    "gptq": (oracle.gptq, GPTQ, "q4_0", True),
    "gptq v2": (
        partial(oracle.gptq, symmetric=False, v2=True),
        GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"},
        "q5_0",
        True,
    ),
    "gptq zero points": (partial(oracle.gptq, symmetric=False), GPTQ | {"sym": False}, "q5_0", True),
    "gptq act-order": (partial(oracle.gptq, act_order=True), GPTQ | {"desc_act": True}, "q8_0", False),
    "gptq 8 bits": (partial(oracle.gptq, bits=8), GPTQ | {"bits": 8}, "q8_0", True),
    "awq": (oracle.awq, AWQ, "q5_0", True),
    "nvfp4": (oracle.nvfp4, compressed("nvfp4-pack-quantized", type="float", group_size=16), "q8_0", False),
    "nvfp4 modelopt": (partial(oracle.nvfp4, modelopt=True), NVFP4, "q8_0", False),
    "mxfp4": (oracle.mxfp4, compressed("mxfp4-pack-quantized", type="float", group_size=32), "mxfp4", True),
    "nf4": (oracle.nf4, BNB, "q8_0", False),
    "nf4 not nested": (partial(oracle.nf4, nested=False), BNB, "q8_0", False),
    "nf4 across rows": (partial(oracle.nf4, block=256), BNB, "q8_0", False),
    "fp8 tensor": (partial(oracle.fp8, per="one"), FLOAT8(strategy="tensor"), "bf16", True),
    "fp8 rows": (partial(oracle.fp8, per="row"), FLOAT8(strategy="channel"), "bf16", True),
    "fp8 modelopt": (oracle.fp8, NVFP4 | {"quant_algo": "FP8"}, "bf16", True),
    "fp8 static": (partial(oracle.fp8, name="weight_scale_inv"), STATIC, "bf16", True),
}


def coded(make: Callable[..., Coded], config: dict[str, Any] = TINY) -> tuple[Checkpoint, Checkpoint]:
    """A checkpoint with all of its projections coded, and what they are worth, the rest in bf16 in both."""
    shipped: Checkpoint = {}
    meant: Checkpoint = {}
    generator = torch.Generator().manual_seed(7)
    for name, tensor in random_tensors(config).items():
        if name.endswith("_proj.weight"):
            tensors, weights = make(*tensor.shape, generator)
            shipped |= {name.removesuffix("weight") + part: value for part, value in tensors.items()}
            meant[name] = weights
        else:
            shipped[name] = meant[name] = tensor * 0.1
    return shipped, meant


def stored(model: StoredModel) -> dict[str, tuple[Format, Tensor]]:
    """Every stored tensor by the checkpoint's name for it."""

    def read(spec: TensorSpec, data: bytes) -> tuple[Format, Tensor]:
        rows, cols = int(np.prod(spec.shape[:-1])), spec.shape[-1]
        out = np.empty((rows, cols), np.float32)
        dequantise(spec.dtype, data[spec.offset_bytes :][: spec.num_bytes], rows, cols, out)
        return spec.dtype, torch.from_numpy(out.reshape(spec.shape))

    layout, found = model.manifest.layout, {}
    for layer, path in enumerate(model.shard_paths):
        data = path.read_bytes()
        for expert in range(model.manifest.moe.num_experts):
            for spec in layout.tensors:
                name = f"model.layers.{layer}.mlp.experts.{expert}.{spec.name}_proj.weight"
                found[name] = read(spec, data[expert * layout.stride_bytes :])
    dense = model.dense_path.read_bytes()
    return found | {
        spec.name: read(spec, dense) for spec in dense_tensors(model.dense_path, model.manifest.dense_formats)
    }


@pytest.mark.parametrize("scheme", SCHEMES)
def test_stored_weights_are_those_that_the_format_defines_or_the_error_is_said(scheme: str, tmp_path: Path) -> None:
    make, quantization, format, exact = SCHEMES[scheme]
    shipped, meant = coded(make)
    checkpoint = write_checkpoint(tmp_path / "c", shipped, TINY | {"quantization_config": quantization})
    model = pull(str(checkpoint), home=tmp_path / "home")
    assert verify(model) == []
    found = stored(model)
    assert found.keys() == meant.keys()
    largest = lost = squares = 0.0
    for name, (kind, weights) in found.items():
        assert kind == (format if name.endswith("_proj.weight") else "bf16"), name
        if exact or kind != format:
            assert torch.equal(weights, meant[name].float()), name
        else:
            error = (weights - meant[name]).double()
            largest = max(largest, float(error.abs().max() / meant[name].abs().max()))
            lost, squares = lost + float((error**2).sum()), squares + float((meant[name].double() ** 2).sum())
    lines = model.manifest.fallbacks
    if exact:
        assert lines == ()
    else:
        figures = re.search(r"the largest error is (\S+) % of .* mean square (\S+) %$", lines[0])
        assert len(lines) == 1 and figures and lines[0].startswith("expert gate, expert up, expert down, 8 dense")
        assert float(figures[1]) == pytest.approx(100 * largest, rel=0.06)
        assert float(figures[2]) == pytest.approx(100 * (lost / squares) ** 0.5, rel=0.06)
        assert float(figures[1]) < 0.5 and float(figures[2]) < 1


def first_logits(model: StoredModel) -> Float32Array:
    found: list[Float32Array] = []

    class Recorder:
        def sample(self, logits: Float32Array, history: Sequence[int]) -> int:
            found.append(logits.copy())
            return 0

    with Model(model, RuntimeConfig.of(device="cpu", threads=1)) as running:
        list(running.generator.tokens(running.encode(PROMPT), Recorder(), 1, GenerationStats()))
    return found[0]


@pytest.mark.parametrize("scheme", ["w4 group 32", "w4 zero points", "w8 group 32", "gptq act-order", "awq", "nf4"])
def test_logits_are_those_of_the_weights_in_f32_but_for_the_rounding_of_activations(
    scheme: str, tmp_path: Path
) -> None:
    make, quantization, _, _ = SCHEMES[scheme]
    shipped, meant = coded(make)
    checkpoint = write_checkpoint(tmp_path / "c", shipped, TINY | {"quantization_config": quantization})
    plain = write_checkpoint(tmp_path / "f32", {name: tensor.float() for name, tensor in meant.items()}, TINY)
    ours, theirs = (first_logits(pull(str(each), home=tmp_path / "home")) for each in (checkpoint, plain))
    assert np.linalg.norm(ours - theirs) < 0.02 * np.linalg.norm(theirs)
