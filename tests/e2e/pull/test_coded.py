"""Quantised checkpoints of the Hub: what is stored of them is what the published formats define, or the line says."""

from __future__ import annotations

import json
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
from moeinf.config.pull_options import PullOptions
from moeinf.engine.completion import GenerationStats
from moeinf.engine.model import Model
from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.pull.checkpoint import checkpoint_pull as steps
from moeinf.pull.checkpoint.convert import Portions, convert_shard
from moeinf.pull.coded.blocks import Losses
from moeinf.pull.pull import plan_pull, pull
from moeinf.store.dense import dense_tensors
from moeinf.store.library import StoredModel
from moeinf.store.verify import verify
from moeinf.types import Float32Array, Format, TensorSpec
from tests.oracles import coded_weights as oracle
from tests.oracles.coded_weights import Coded
from tests.support.adapters import Q, factors, write_adapter
from tests.support.checkpoints import CONFIG, Checkpoint, content, random_tensors, write_checkpoint
from tests.support.configs.kimi_k3 import KIMI_K3
from tests.support.kimi_k3_gguf import published_k3
from tests.support.true_configs import PUBLISHED

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
    # Published checkpoints say the other version, or none; symmetric codes tell by themselves (vllm#38966).
    "gptq v2 that is said to be v1": (partial(oracle.gptq, v2=True), GPTQ, "q4_0", True),
    "gptq v2 of 8 bits without a word": (partial(oracle.gptq, bits=8, v2=True), GPTQ | {"bits": 8}, "q8_0", True),
    "gptq v1 that is said to be v2": (oracle.gptq, GPTQ | {"checkpoint_format": "gptq_v2"}, "q4_0", True),
    "gptq zero points": (partial(oracle.gptq, symmetric=False), GPTQ | {"sym": False}, "q5_0", True),
    "gptq act-order": (partial(oracle.gptq, act_order=True), GPTQ | {"desc_act": True}, "q8_0", False),
    "gptq 8 bits": (partial(oracle.gptq, bits=8), GPTQ | {"bits": 8}, "q8_0", True),
    "awq": (oracle.awq, AWQ, "q5_0", True),
    "nvfp4": (oracle.nvfp4, compressed("nvfp4-pack-quantized", type="float", group_size=16), "q8_0", False),
    "nvfp4 modelopt": (partial(oracle.nvfp4, modelopt=True), NVFP4, "q8_0", False),
    "mxfp4": (oracle.mxfp4, compressed("mxfp4-pack-quantized", type="float", group_size=32), "mxfp4", True),
    "mxfp4 of DeepSeek-V4": (partial(oracle.mxfp4, deepseek=True), STATIC, "mxfp4", True),
    "nf4": (oracle.four_bits, BNB, "q8_0", False),
    "nf4 not nested": (partial(oracle.four_bits, nested=False), BNB, "q8_0", False),
    "nf4 across rows": (partial(oracle.four_bits, block=256), BNB, "q8_0", False),
    "fp4": (partial(oracle.four_bits, kind="fp4"), BNB | {"bnb_4bit_quant_type": "fp4"}, "q8_0", False),
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
        spec.name: read(spec, dense) for spec in dense_tensors(model.dense_path, model.manifest.formats.dense)
    }


def test_experts_of_kimi_k3_are_read_as_published(tmp_path: Path) -> None:
    """The language model's object says how; experts alone are coded, though targets are all projections."""
    said = json.loads((PUBLISHED / "kimi-k3" / "config.json").read_text())["text_config"]["quantization_config"]
    config = KIMI_K3 | {"text_config": KIMI_K3["text_config"] | {"moe_intermediate_size": 32}}
    shipped, meant, generator = dict[str, Tensor](), dict[str, Tensor](), torch.Generator().manual_seed(7)
    for name, tensor in published_k3(config).items():
        if ".experts." in name:
            rows, cols = tensor.shape
            tensors, meant[name] = oracle.mxfp4(rows, cols, generator)
            shipped |= {name.removesuffix("weight") + part: value for part, value in tensors.items()}
        else:
            shipped[name] = tensor
    whole = config | {"text_config": config["text_config"] | {"quantization_config": said}}
    model = pull(str(write_checkpoint(tmp_path / "c", shipped, whole)), home=tmp_path / "home")
    assert verify(model) == [] and model.manifest.formats.fallbacks == ()
    found, parts = stored(model), {"w1": "gate", "w2": "down", "w3": "up"}
    assert len(meant) == 4 * 12 * 3
    for name, weights in meant.items():
        layer, expert, part = re.findall(r"layers\.(\d+)\..*\.experts\.(\d+)\.(w\d)\.", name)[0]
        kind, read = found[f"model.layers.{int(layer) - 1}.mlp.experts.{expert}.{parts[part]}_proj.weight"]
        assert kind == "mxfp4" and torch.equal(read, weights.float()), name


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
    lines = model.manifest.formats.fallbacks
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


def shipped_in(scheme: str) -> tuple[Checkpoint, dict[str, Any]]:
    make, quantization, _, _ = SCHEMES[scheme]
    return coded(make)[0], TINY | {"quantization_config": quantization}


@pytest.mark.parametrize("scheme", ["w4 f32 scales", "w4 zero points", "gptq act-order", "nf4", "fp8 rows"])
def test_neither_reads_nor_threads_nor_the_order_of_tensors_change_a_byte(scheme: str, tmp_path: Path) -> None:
    shipped, config = shipped_in(scheme)
    whole = pull(str(write_checkpoint(tmp_path / "c", shipped, config)), home=tmp_path / "whole")
    apart = write_checkpoint(tmp_path / "c", shipped, config, order=lambda name: name[::-1])  # scales lie elsewhere
    small = pull(str(apart), home=tmp_path / "small", portions=Portions(segment_bytes=1000, num_threads=3))
    assert small.manifest.formats.fallbacks == whole.manifest.formats.fallbacks
    sums = [{name: value for name, value in content(each.path).items() if name != "LICENSE"} for each in (whole, small)]
    assert sums[0] == sums[1]


@pytest.mark.parametrize("scheme", ["w4 f32 scales", "gptq act-order"])
def test_a_pull_that_was_interrupted_ends_in_the_bytes_and_figures_of_one_that_was_not(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = write_checkpoint(tmp_path / "c", *shipped_in(scheme), order=lambda name: name[::-1])
    real, calls = convert_shard, []

    def convert(*args: Any) -> Losses:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(steps, "convert_shard", convert)
    with pytest.raises(KeyboardInterrupt):
        pull(str(checkpoint), home=tmp_path / "home")
    model = pull(str(checkpoint), home=tmp_path / "home")
    assert len(calls) == 5  # of four shards, one twice
    assert content(model.path) == content(pull(str(checkpoint), home=tmp_path / "other").path)


def test_a_dry_run_says_which_weights_no_block_holds(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "c", *shipped_in("gptq act-order"))
    assert plan_pull(str(checkpoint), home=tmp_path / "home").fallbacks == (
        "expert gate, expert up, expert down, 8 dense tensors: symmetric int4 in act-order as q8_0: "
        "no block holds it exactly",
    )


@pytest.mark.parametrize("scheme", ["w4 group 32", "gptq", "awq", "nf4", "nvfp4"])
def test_another_format_is_made_of_the_weights_in_f32(scheme: str, tmp_path: Path) -> None:
    shipped, config = shipped_in(scheme)
    meant = {
        name: tensor.float() if "_proj" in name else tensor for name, tensor in coded(SCHEMES[scheme][0])[1].items()
    }
    options = PullOptions(quant_experts="iq4_nl", quant_dense="q4_0")
    first, second = (
        pull(str(write_checkpoint(tmp_path / name, tensors, each)), options, home=tmp_path / "home")
        for name, tensors, each in (("coded", shipped, config), ("plain", meant, TINY))
    )
    ours, theirs = stored(first), stored(second)
    assert all(torch.equal(ours[name][1], theirs[name][1]) for name in ours if ".experts." in name)
    assert first.manifest.layout == second.manifest.layout and first.manifest.formats.fallbacks == ()


def test_biases_of_zeros_that_gptq_adds_are_left_out_and_others_refused(tmp_path: Path) -> None:
    shipped, config = shipped_in("gptq")
    bias = "model.layers.0.self_attn.o_proj.bias"
    zero = write_checkpoint(tmp_path / "zero", shipped | {bias: torch.zeros(128, dtype=torch.float16)}, config)
    plain = write_checkpoint(tmp_path / "plain", shipped, config)
    first, second = (pull(str(each), home=tmp_path / "home") for each in (zero, plain))
    assert all(torch.equal(stored(first)[name][1], weights) for name, (_, weights) in stored(second).items())
    one = write_checkpoint(tmp_path / "one", shipped | {bias: torch.ones(128, dtype=torch.float16)}, config)
    with pytest.raises(CheckpointError, match=f"'{bias}': does not belong to this architecture, and is not zero"):
        pull(str(one), home=tmp_path / "home")


DOWN = "model.layers.1.mlp.experts.2.down_proj"


@pytest.mark.parametrize("order", [str, lambda name: name[::-1]], ids=["beside", "apart"])  # where scales lie
@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_adapter_is_added_to_the_weights_that_the_codes_stand_for(
    scheme: str, order: Callable[[str], str], tmp_path: Path
) -> None:
    make, quantization, format, _ = SCHEMES[scheme]
    shipped, meant = coded(make)
    config = TINY | {"quantization_config": quantization}
    changes = {Q: factors(Q, 128, 128), DOWN: factors(DOWN, 128, 256)}
    lora = str(write_adapter(tmp_path / "a", {name: each for pair in changes.values() for name, each in pair.items()}))
    checkpoint = write_checkpoint(tmp_path / "c", shipped, config, order=order)
    model = pull(str(checkpoint), PullOptions(lora=lora), home=tmp_path / "home")
    assert verify(model) == [] and list((tmp_path / "home" / "partial").iterdir()) == []
    plain = stored(pull(str(checkpoint), home=tmp_path / "home"))
    for name, (kind, weights) in stored(model).items():
        module = name.removesuffix(".weight")
        widened = name.endswith("down_proj.weight") or module in changes  # a part is of one form in all experts
        dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}.get(kind)
        if not widened:
            assert kind == plain[name][0] and torch.equal(weights, plain[name][1]), name
            continue
        assert dtype is not None, name
        wanted = meant[name].to(dtype).float()
        if module in changes:
            a, b = changes[module].values()
            wanted = (wanted + 2 * (b @ a)).to(dtype).float()
        assert torch.equal(weights, wanted), name
    lines = [line for line in model.manifest.formats.fallbacks if "decoded for the adapter" in line]
    assert len(lines) == (0 if format == "bf16" else 1) and all("9 tensors from" in line for line in lines)


@pytest.mark.parametrize("scheme", ["gptq", "nvfp4", "fp8 rows"])
def test_a_format_is_made_of_the_sums(scheme: str, tmp_path: Path) -> None:
    make, quantization, _, _ = SCHEMES[scheme]
    shipped, meant = coded(make)
    half = torch.float16 if scheme == "gptq" else torch.bfloat16
    plain = {name: tensor.to(half if "_proj" in name else tensor.dtype) for name, tensor in meant.items()}
    lora = str(write_adapter(tmp_path / "a", factors(Q, 128, 128) | factors(DOWN, 128, 256)))
    options = PullOptions(lora=lora, quant_experts="q4_k", quant_dense="q8_0")
    first, second = (
        pull(str(write_checkpoint(tmp_path / name, tensors, each)), options, home=tmp_path / "home")
        for name, tensors, each in (
            ("coded", shipped, TINY | {"quantization_config": quantization}),
            ("plain", plain, TINY),
        )
    )
    ours, theirs = stored(first), stored(second)
    assert all(torch.equal(ours[f"{name}.weight"][1], theirs[f"{name}.weight"][1]) for name in (Q, DOWN))
    assert first.manifest.layout == second.manifest.layout


def test_space_is_asked_for_of_what_is_decoded(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "c", *shipped_in("w4 group 32"), num_shards=0)
    lora = str(write_adapter(tmp_path / "a", factors(DOWN, 128, 256)))
    plain, adapted = (
        plan_pull(str(checkpoint), PullOptions(lora=each), home=tmp_path / "home") for each in (None, lora)
    )
    shard = (checkpoint / "model.safetensors").stat().st_size
    wider = adapted.store_bytes - plain.store_bytes
    assert wider > 0 and adapted.needed_bytes - plain.needed_bytes == pytest.approx(2 * wider + shard, rel=0.1)


def test_zeros_that_gptq_adds_to_what_is_decoded(tmp_path: Path) -> None:
    shipped, config = shipped_in("gptq")
    lora = str(write_adapter(tmp_path / "a", factors(Q, 128, 128)))
    models = []
    for value in (0, 1):
        bias = {f"{Q}.bias": torch.full((128,), value, dtype=torch.float16)}
        checkpoint = write_checkpoint(tmp_path / f"c{value}", shipped | bias, config, order=lambda name: name[::-1])
        if value:
            with pytest.raises(CheckpointError, match="does not belong to this architecture, and is not zero"):
                pull(str(checkpoint), PullOptions(lora=lora), home=tmp_path / "home")
        else:
            models.append(pull(str(checkpoint), PullOptions(lora=lora), home=tmp_path / "home"))
    assert stored(models[0])[f"{Q}.weight"][0] == "f16"


UP = "model.layers.1.mlp.experts.2.up_proj."


def without(name: str) -> Callable[[Checkpoint], None]:
    return lambda tensors: tensors.__delitem__(UP + name)


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Checkpoint], None]:
    return lambda tensors: tensors.__setitem__(UP + name, change(tensors[UP + name]).contiguous())


def added(name: str, tensor: Tensor) -> Callable[[Checkpoint], None]:
    return lambda tensors: tensors.__setitem__(UP + name, tensor)


def unchanged(tensors: Checkpoint) -> None:
    """For what the config alone gets wrong."""


@pytest.mark.parametrize(
    ("scheme", "change", "config", "words"),
    [
        ("w4 group 32", changed("weight_scale", lambda t: t[:, :2]), {}, r"2 groups in a row, .* groups of 32 has 4"),
        ("w4 group 32", changed("weight_scale", lambda t: t[:5]), {}, r"shape \[5, 4\], .* implies \[256, 4\]"),
        ("w4 group 32", changed("weight_packed", lambda t: t[:, :8]), {}, r"shape \[256, 8\], .* implies \[256, 16\]"),
        ("w4 group 32", without("weight_scale"), {}, "lacks tensor '.*weight_scale'"),
        ("w4 group 32", unchanged, compressed(PACK, group_size=48), "groups of 48 cannot have whole ones"),
        ("w4 group 32", unchanged, compressed(PACK, num_bits=3), "num_bits is 3; moeinf reads only 4, 8"),
        ("w4 group 32", unchanged, compressed("marlin-24"), "format is marlin-24"),
        ("w4 group 32", unchanged, compressed(PACK) | {"transform_config": {"config_groups": {"R1": {}}}}, "transform"),
        ("w4 group 32", unchanged, compressed(PACK) | {"sparsity_config": {"format": "sparse-24"}}, "sparsity_config"),
        ("w4 group 32", changed("weight_shape", lambda t: t + 1), {}, r"weight_shape is \[257, 129\], .* \[256, 128\]"),
        ("w4 group 32", changed("weight_scale", lambda t: t * float("nan")), {}, "a scale that is NaN"),
        ("w4 group 32", added("weight_zero_point", torch.ones(256, 4, dtype=torch.int8)), {}, "config.json calls symm"),
        ("w4 zero points", without("weight_zero_point"), {}, "lacks tensor '.*weight_zero_point'"),
        ("w4 zero points", changed("weight_zero_point", lambda t: t[:3]), {}, r"shape \[3, 4\], .* implies \[32, 4\]"),
        ("w4 act-order", changed("weight_g_idx", lambda t: t + 1), {}, "names a group that is none of 4"),
        ("gptq", without("scales"), {}, "lacks tensor '.*scales'"),
        ("gptq", without("qzeros"), {}, "lacks tensor '.*qzeros'"),
        ("gptq", changed("qweight", lambda t: t[:3]), {}, r"shape \[3, 256\], .* implies \[16, 256\]"),
        ("gptq", changed("qzeros", lambda t: t + 1), {}, "has zero points of its own, though config.json says sym"),
        ("gptq", changed("g_idx", lambda t: t.flip(0)), {}, "in act-order, though config.json does not say desc_act"),
        ("gptq act-order", changed("g_idx", lambda t: t - 1), {}, "names a group that is none of 4"),
        ("gptq act-order", without("g_idx"), {}, "lacks tensor '.*g_idx'"),
        ("gptq", unchanged, GPTQ | {"bits": 3}, "bits is 3; moeinf reads only 4, 8"),
        ("gptq", unchanged, GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format is marlin"),
        ("gptq", unchanged, GPTQ | {"dynamic": {"+:.*up": {"sym": False}}}, "a sym of its own"),
        ("gptq", unchanged, NVFP4, "is of GPTQ or AWQ, and config.json does not say of which"),
        ("awq", unchanged, AWQ | {"version": "gemv"}, "version is gemv; moeinf reads only gemm"),
        ("nvfp4", without("weight_global_scale"), {}, "lacks tensor '.*weight_global_scale'"),
        ("nvfp4", changed("weight_global_scale", torch.zeros_like), {}, "has 0.0 as the scale of all of it"),
        ("nvfp4 modelopt", unchanged, NVFP4 | {"quant_algo": "W4A16_AWQ"}, "quant_algo is W4A16_AWQ"),
        ("nvfp4 modelopt", added("pre_quant_scale", torch.ones(128)), {}, "pre_quant_scale' does not belong"),
        ("nf4", without("weight.absmax"), {}, "lacks tensor '.*absmax'"),
        ("nf4", changed("weight.absmax", lambda t: t[:7]), {}, r"shape \[7\], .* implies \[1024\] or \[512\]"),
        ("nf4", changed("weight.quant_state.bitsandbytes__nf4", lambda t: t[:9]), {}, "quant_state is b'{\"quant_t'"),
        ("nf4", unchanged, BNB | {"load_in_8bit": True}, "load_in_8bit is True; moeinf reads only False"),
        ("fp8 rows", without("weight_scale"), {}, "lacks tensor '.*weight_scale_inv'"),
        ("fp8 rows", changed("weight_scale", lambda t: t[:9]), {}, r"shape \[9, 1\], .* implies .* \[256, 1\]"),
        ("fp8 rows", added("weight_zero_point", torch.ones(256, 1)), {}, "weight_zero_point' does not belong"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(
    scheme: str, change: Callable[[Checkpoint], None], config: dict[str, Any], words: str, tmp_path: Path
) -> None:
    shipped, whole = shipped_in(scheme)
    change(shipped)
    whole |= {"quantization_config": config} if config else {}
    checkpoint = write_checkpoint(tmp_path / "c", shipped, whole)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=words) as caught:
        pull(str(checkpoint), home=tmp_path / "home")
    assert "\n" not in str(caught.value)


def test_groups_of_a_config_are_for_the_modules_that_they_name(tmp_path: Path) -> None:
    """Attention in 8 bits and the experts in 4, as llm-compressor writes mixed precision."""
    shipped = coded(oracle.packed)[0]
    eight = coded(partial(oracle.packed, bits=8))[0]
    shipped = {name: tensor for name, tensor in shipped.items() if ".self_attn." not in name or "_proj" not in name}
    shipped |= {name: tensor for name, tensor in eight.items() if ".self_attn." in name}
    config = compressed(PACK, group_size=32)
    group = {"targets": [r"re:.*self_attn\.(q|k|v|o)_proj$"], "weights": {"num_bits": 8, "group_size": 32}}
    config["config_groups"] = {"group_1": config["config_groups"]["group_0"], "group_0": group}
    model = pull(
        str(write_checkpoint(tmp_path / "c", shipped, TINY | {"quantization_config": config})), home=tmp_path / "home"
    )
    formats = {name: format for name, (format, _) in stored(model).items() if "_proj" in name}
    assert all(format == ("q8_0" if "self_attn" in name else "q4_0") for name, format in formats.items())
    for pattern in ("re:(a+)+b", "re:(", "re:.*.*.*.*.*x"):
        group["targets"] = [pattern]
        checkpoint = write_checkpoint(tmp_path / "bad", shipped, TINY | {"quantization_config": config})
        with pytest.raises(UnsupportedModelError, match="in targets is no name and no pattern"):
            pull(str(checkpoint), home=tmp_path / "home")


@pytest.mark.parametrize("quant", ["keep", "q8_0"])
@pytest.mark.parametrize("name", SCHEMES)
def test_a_coded_head_is_kept_though_config_json_ties_it(name: str, quant: str, tmp_path: Path) -> None:
    make, declared, _, _ = SCHEMES[name]
    config = TINY | {"vocab_size": 64, "quantization_config": declared}
    tensors = random_tensors(config)
    del tensors["lm_head.weight"]
    tensors |= {f"lm_head.{part}": each for part, each in make(64, 128, torch.Generator().manual_seed(7))[0].items()}
    stored = [
        pull(
            str(write_checkpoint(tmp_path / str(tied), tensors, config | {"tie_word_embeddings": tied})),
            PullOptions(quant=quant),
            home=tmp_path / "home",
        )
        for tied in (False, True)
    ]
    assert [any("kept and used" in line for line in each.manifest.formats.fallbacks) for each in stored] == [
        False,
        True,
    ]
    untied, tied = (content(each.path)["dense.safetensors"] for each in stored)
    assert untied == tied
