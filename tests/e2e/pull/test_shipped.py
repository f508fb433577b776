"""Checkpoints as some families ship them: in FP8 with scales of tiles, in MXFP4 with scales apart, transposed."""

from __future__ import annotations

import hashlib
import itertools
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from moeinf._native import dequantise
from moeinf.config.pull_options import PullOptions
from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.models.family import family_of
from moeinf.pull import pull as install
from moeinf.pull.checkpoint import checkpoint_pull as steps
from moeinf.pull.checkpoint import convert
from moeinf.pull.checkpoint.convert import Portions
from moeinf.pull.coded.blocks import Losses
from moeinf.pull.pull import pull
from moeinf.pull.source import FolderSource
from moeinf.store.library import StoredModel
from moeinf.store.verify import verify
from moeinf.types import Format
from tests.oracles import coded_weights as oracle
from tests.support.adapters import Q, factors, write_adapter
from tests.support.checkpoints import (
    CONFIG,
    Checkpoint,
    content,
    fused,
    in_fp8,
    in_mxfp4,
    random_tensors,
    write_checkpoint,
)
from tests.support.configs.deepseek_v4 import DEEPSEEK_V4
from tests.support.configs.mimo_v2 import MIMO_V2

# Rows and columns that fill no tile, as the 576 rows of DeepSeek-V3's kv_a_proj_with_mqa.
CUT_TILES = CONFIG | {"hidden_size": 192, "moe_intermediate_size": 320, "head_dim": 40, "num_experts": 4}
FP8 = {
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
}
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "vocab_size": 97,
    "hidden_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 256,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 8,
}
MXFP4 = {"quantization_config": {"quant_method": "mxfp4"}}


def scattered(name: str) -> str:
    """An order in which weights and their scales lie in different shards."""
    return hashlib.sha256(name.encode()).hexdigest()


def weights(model: StoredModel) -> dict[str, str]:
    """Sums of the weight files."""
    return {name: digest for name, digest in content(model.path).items() if name.endswith((".bin", ".safetensors"))}


@pytest.mark.parametrize("quant", [None, "q8_0", "q4_k"])
@pytest.mark.parametrize("layout", ["separate", "fused"])
def test_fp8_is_the_bf16_that_its_scales_make_of_it(quant: str | None, layout: str, tmp_path: Path) -> None:
    tensors = random_tensors(CUT_TILES)
    shipped, meant = in_fp8(tensors if layout == "separate" else fused(tensors, CUT_TILES))
    fp8 = write_checkpoint(tmp_path / "fp8", shipped, CUT_TILES | FP8, order=scattered)
    bf16 = write_checkpoint(tmp_path / "bf16", meant, CUT_TILES)
    first, second = (pull(str(folder), PullOptions(quant=quant), home=tmp_path / "home") for folder in (fp8, bf16))
    assert weights(first) == weights(second) and verify(first) == []
    assert first.manifest.info == second.manifest.info


@pytest.mark.parametrize("quant", [None, "q8_0"])
@pytest.mark.parametrize("layout", ["separate", "fused"])
def test_an_adapter_beside_fp8_is_one_beside_the_bf16_that_it_stands_for(
    quant: str | None, layout: str, tmp_path: Path
) -> None:
    tensors = random_tensors(CUT_TILES)
    shipped, meant = in_fp8(tensors if layout == "separate" else fused(tensors, CUT_TILES))
    fp8 = write_checkpoint(tmp_path / "fp8", shipped, CUT_TILES | FP8, order=scattered)
    bf16 = write_checkpoint(tmp_path / "bf16", meant, CUT_TILES)
    changes = factors(Q, 160, 192) | factors("model.layers.1.mlp.experts.3.down_proj", 192, 320)
    options = PullOptions(quant=quant, lora=str(write_adapter(tmp_path / "a", changes)))
    first, second = (pull(str(folder), options, home=tmp_path / "home") for folder in (fp8, bf16))
    assert weights(first) == weights(second) and verify(first) == []
    assert weights(first) != weights(pull(str(fp8), PullOptions(quant=quant), home=tmp_path / "home"))
    assert not any("decoded" in line for line in first.manifest.formats.fallbacks), "it is stored as ever"


def test_fp8_does_not_depend_on_the_size_of_reads_nor_on_the_type_of_its_scales(tmp_path: Path) -> None:
    shipped, _ = in_fp8(random_tensors(CUT_TILES), (64, 96))
    shipped = {name: tensor.bfloat16() if name.endswith("_inv") else tensor for name, tensor in shipped.items()}
    config = CUT_TILES | {"quantization_config": FP8["quantization_config"] | {"weight_block_size": [64, 96]}}
    checkpoint = write_checkpoint(tmp_path / "c", shipped, config)
    whole = pull(str(checkpoint), home=tmp_path / "whole")
    wide = {name: tensor.float() if name.endswith("_inv") else tensor for name, tensor in shipped.items()}
    other = pull(str(write_checkpoint(tmp_path / "wide", wide, config)), home=tmp_path / "other")
    assert weights(whole) == weights(other)
    small = pull(str(checkpoint), home=tmp_path / "small", portions=Portions(segment_bytes=1000))
    assert weights(whole) == weights(small)


MXFP8: dict[str, Any] = {"quantization_config": {"quant_method": "mxfp8", "weight_block_size": [1, 32]}}


def in_mxfp8(tensors: Checkpoint) -> tuple[Checkpoint, Checkpoint]:
    """As MiniMax ships M3: a power of two for 32 weights of a row, by its exponent."""
    shipped, meant = in_fp8(tensors, (1, 32), powers=True)
    exponents = {name: each.log2() + 127 for name, each in shipped.items() if name.endswith("_scale_inv")}
    return shipped | {name: each.to(torch.uint8) for name, each in exponents.items()}, meant


@pytest.mark.parametrize("quant", [None, "q8_0"])
def test_mxfp8_is_the_bf16_that_its_exponents_make_of_it(quant: str | None, tmp_path: Path) -> None:
    shipped, meant = in_mxfp8(random_tensors(CUT_TILES))
    mxfp8 = write_checkpoint(tmp_path / "mxfp8", shipped, CUT_TILES | MXFP8, order=scattered)
    bf16 = write_checkpoint(tmp_path / "bf16", meant, CUT_TILES)
    first, second = (pull(str(folder), PullOptions(quant=quant), home=tmp_path / "home") for folder in (mxfp8, bf16))
    assert weights(first) == weights(second) and verify(first) == []


@pytest.mark.parametrize(
    ("exponents", "size", "error", "words"),
    [
        (torch.full((320, 6), 255, dtype=torch.uint8), [1, 32], CheckpointError, "scale that is NaN"),
        (torch.ones(320, 12, dtype=torch.uint8), [1, 32], CheckpointError, r"shape \[320, 12\]"),
        (None, [1, 16], UnsupportedModelError, r"weight_block_size is \[1, 16\]"),
    ],
)
def test_mxfp8_that_is_not_understood_is_refused_by_name(
    exponents: Tensor | None, size: list[int], error: type[Exception], words: str, tmp_path: Path
) -> None:
    shipped, _ = in_mxfp8(random_tensors(CUT_TILES))
    shipped |= {} if exponents is None else {f"{UP}_scale_inv": exponents}
    said = {"quantization_config": MXFP8["quantization_config"] | {"weight_block_size": size}}
    checkpoint = write_checkpoint(tmp_path / "c", shipped, CUT_TILES | said)
    with pytest.raises(error, match=words):
        pull(str(checkpoint), home=tmp_path / "home")


def in_shares(tensors: Checkpoint, layer: int, shares: int, *, one: bool) -> tuple[Checkpoint, Checkpoint]:
    """Queries, keys and values in FP8, each share of rows by itself, as processors held them; and what it stands for.

    one: all in one matrix, the queries, keys and values of one processor behind those of another.
    """
    prefix = f"model.layers.{layer}.self_attn."
    names = [f"{prefix}{each}_proj.weight" for each in "qkv"]
    parts = [list(tensors[name].chunk(shares)) for name in names]
    pieces = [torch.cat(share) for share in zip(*parts, strict=True)] if one else [*itertools.chain(*parts)]
    coded, meant = zip(*(in_fp8({"x_proj.weight": piece}, (16, 32)) for piece in pieces), strict=True)
    codes, scales = ([each[f"x_proj.weight{end}"] for each in coded] for end in ("", "_scale_inv"))
    decoded = [each["x_proj.weight"] for each in meant]
    if one:
        sizes = [len(part[0]) for part in parts]
        apart = [torch.cat(found) for found in zip(*(each.split(sizes) for each in decoded), strict=True)]
        made = {f"{prefix}qkv_proj.weight": (codes, scales)}
    else:
        ranges = [slice(at * shares, (at + 1) * shares) for at in range(3)]
        apart = [torch.cat(decoded[each]) for each in ranges]
        made = {name: (codes[each], scales[each]) for name, each in zip(names, ranges, strict=True)}
    shipped = {name: torch.cat(each[0]) for name, each in made.items()}
    shipped |= {f"{name}_scale_inv": torch.cat(each[1]) for name, each in made.items()}
    return shipped, dict(zip(names, apart, strict=True))


@pytest.mark.parametrize("quant", [None, "q8_0"])
@pytest.mark.parametrize("one", [True, False])
def test_what_was_quantised_in_shares_of_processors_is_read(one: bool, quant: str | None, tmp_path: Path) -> None:
    """As MiMo-V2.6 is published, and the keys of MiMo-V2-Flash: 24 rows of a head have a tile of 16 and one of 8."""
    config = MIMO_V2 | {"attention_projection_layout": "fused_qkv"}
    tensors = random_tensors(config)
    attention = {name: each for name, each in tensors.items() if re.search(r"self_attn\.[qkv]_proj", name)}
    others = {name: each for name, each in tensors.items() if name not in attention}
    shipped, meant = dict(others), dict(others)
    for layer in range(config["num_hidden_layers"]):
        of_layer = in_shares(tensors, layer, config["num_key_value_heads"], one=one)
        shipped |= of_layer[0]
        meant |= of_layer[1]
    said = {"quantization_config": FP8["quantization_config"] | {"weight_block_size": [16, 32]}}
    first = pull(
        str(write_checkpoint(tmp_path / "fp8", shipped, config | said, order=scattered)),
        PullOptions(quant=quant),
        home=tmp_path / "home",
        portions=Portions(segment_bytes=1000),
    )
    second = pull(
        str(write_checkpoint(tmp_path / "bf16", meant, config)), PullOptions(quant=quant), home=tmp_path / "h2"
    )
    assert weights(first) == weights(second) and verify(first) == []


def test_rows_of_which_the_order_is_not_known_are_refused(tmp_path: Path) -> None:
    tensors = random_tensors(MIMO_V2)
    for layer in range(MIMO_V2["num_hidden_layers"]):
        prefix = f"model.layers.{layer}.self_attn."
        parts = [tensors.pop(f"{prefix}{each}_proj.weight") for each in "qkv"]
        tensors[f"{prefix}qkv_proj.weight"] = torch.cat(parts)
    with pytest.raises(UnsupportedModelError, match=r"the order of rows in tensor 'model\.layers\.\d\.self_attn\.qkv"):
        pull(str(write_checkpoint(tmp_path / "c", tensors, MIMO_V2)), home=tmp_path / "home")


TABLE = "layers.1.ffn.gate.tid2eid"
UP = "model.layers.1.mlp.experts.2.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "config", "error", "words"),
    [
        ({f"{UP}_scale_inv": None}, FP8, CheckpointError, f"lacks tensor '{UP}_scale_inv'"),
        ({f"{UP}_scale_inv": torch.ones(3, 1)}, FP8, CheckpointError, rf"shape \[3, 1\], '{UP}' implies \[3, 2\]"),
        ({f"{UP}_scale_inv": torch.ones(3, 2, dtype=torch.uint8)}, FP8, UnsupportedModelError, "U8"),
        ({}, {}, CheckpointError, "tiles have a weight_block_size in config.json"),
        ({}, {"quantization_config": {"quant_method": "fp8"}}, CheckpointError, "tiles have a weight_block_size"),
        (
            {},
            {"quantization_config": FP8["quantization_config"] | {"fmt": "e5m2"}},
            UnsupportedModelError,
            "fmt is e5m2",
        ),
    ],
)
def test_fp8_that_is_not_understood_is_refused_by_name(
    change: dict[str, Tensor | None], config: dict[str, Any], error: type[Exception], words: str, tmp_path: Path
) -> None:
    shipped = in_fp8(random_tensors(CUT_TILES))[0] | change
    kept = {name: tensor for name, tensor in shipped.items() if tensor is not None}
    checkpoint = write_checkpoint(tmp_path / "c", kept, CUT_TILES | config)
    with pytest.raises(error, match=words):
        pull(str(checkpoint), home=tmp_path / "home")


def gpt_oss_dense() -> Checkpoint:
    """All of a gpt-oss checkpoint but the matrices of the experts: their biases, too."""
    plan = family_of(GPT_OSS).tensors
    shapes = dict(plan.dense) | {name: shape for name, (shape, _) in plan.experts[0].items() if name.endswith("_bias")}
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()}


def parts_of(model: StoredModel, layer: int, expert: int) -> dict[str, tuple[Format, Tensor]]:
    layout = model.manifest.layout
    block = model.shard_paths[layer].read_bytes()[expert * layout.stride_bytes :][: layout.stride_bytes]
    found = {}
    for spec in layout.tensors:
        rows, cols = (spec.shape[0], spec.shape[1]) if len(spec.shape) == 2 else (1, spec.shape[0])
        out = np.empty((rows, cols), np.float32)
        dequantise(spec.dtype, block[spec.offset_bytes :][: spec.num_bytes], rows, cols, out)
        found[spec.name] = spec.dtype, torch.from_numpy(out.reshape(spec.shape))
    return found


def meant_parts(tensors: Checkpoint, layer: int, expert: int) -> dict[str, Tensor]:
    """As transformers' GptOssExperts uses them: x @ gate_up_proj, of which every other column is the gate's."""
    of = {
        name: tensors[f"model.layers.{layer}.mlp.experts.{name}"][expert].float()
        for name in ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")
    }
    return {
        "gate": of["gate_up_proj"][:, ::2].T,
        "up": of["gate_up_proj"][:, 1::2].T,
        "down": of["down_proj"].T,
        "gate_bias": of["gate_up_proj_bias"][::2],
        "up_bias": of["gate_up_proj_bias"][1::2],
        "down_bias": of["down_proj_bias"],
    }


def gpt_oss_as_shipped() -> tuple[Checkpoint, Checkpoint]:
    """A checkpoint in MXFP4, and the tensors that transformers makes of it."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    dense = gpt_oss_dense()
    packed = in_mxfp4(GPT_OSS)
    shipped, meant = dense | packed, dict(dense)
    for name in (name.removesuffix("_blocks") for name in packed if name.endswith("_blocks")):
        blocks, scales = packed[f"{name}_blocks"], packed[f"{name}_scales"]
        meant[name] = convert_moe_packed_tensors(blocks.clone(), scales.clone(), dtype=torch.float32)
    return shipped, meant


@pytest.mark.parametrize("quant", [None, "mxfp4", "q4_k"])
def test_mxfp4_experts_are_kept_bit_for_bit_with_rows_and_biases_sorted_out(quant: str | None, tmp_path: Path) -> None:
    shipped, meant = gpt_oss_as_shipped()
    checkpoint = write_checkpoint(tmp_path / "c", shipped, GPT_OSS | MXFP4, order=scattered)
    model = pull(str(checkpoint), PullOptions(quant=quant), home=tmp_path / "home")
    assert verify(model) == []
    for layer, expert in ((0, 0), (1, 3)):
        wanted = meant_parts(meant, layer, expert)
        for name, (format, values) in parts_of(model, layer, expert).items():
            assert format == ("bf16" if name.endswith("bias") else "mxfp4")
            assert torch.equal(values, wanted[name]), name
    kept = [line for line in model.manifest.formats.fallbacks if "comes in mxfp4" in line]
    assert kept == (
        [
            "expert gate, expert up, expert down: comes in mxfp4, which other formats would only make larger "
            "and less exact; stored as mxfp4"
        ]
        if quant == "q4_k"
        else []
    )


@pytest.mark.parametrize("quant", [None, "q8_0", "mxfp4"])
@pytest.mark.parametrize("parameter", ["gate_up_proj", "down_proj", None])
def test_an_adapter_beside_mxfp4_experts(parameter: str | None, quant: str | None, tmp_path: Path) -> None:
    """Of experts in one layer all experts become bf16; of attention they stay what they are."""
    shipped, meant = gpt_oss_as_shipped()
    coded = write_checkpoint(tmp_path / "c", shipped, GPT_OSS | MXFP4, order=scattered)
    unsigned = {name: (tensor + 0.0).bfloat16() for name, tensor in meant.items()}  # -0 is 0
    plain = write_checkpoint(tmp_path / "p", unsigned, GPT_OSS)
    sizes = {"gate_up_proj": (128, 96), "down_proj": (96, 64)}
    experts = factors("model.layers.1.mlp.experts", *sizes[parameter], rank=4 * 2) if parameter else {}
    changes = factors(Q, 64, 96) | experts
    targets = [f"mlp.experts.{parameter}"] if parameter else []
    adapter = write_adapter(tmp_path / "a", changes, target_parameters=targets)
    options = PullOptions(quant=quant, lora=str(adapter))
    first, second = (pull(str(folder), options, home=tmp_path / "home") for folder in (coded, plain))
    told = [line for line in first.manifest.formats.fallbacks if "decoded for the adapter" in line]
    assert verify(first) == []
    if parameter:
        assert weights(first) == weights(second) and first.manifest.layout == second.manifest.layout
        assert told == [
            "decoded for the adapter, as the sums have no place in their blocks: 4 tensors from MXFP4 in bf16"
        ]
    else:
        without = pull(str(coded), PullOptions(quant=quant), home=tmp_path / "home")
        assert told == [] and first.manifest.layout == without.manifest.layout
        changed = {name for name, _ in weights(first).items() - weights(without).items()}
        assert changed == {"dense.safetensors", "checksums.bin"}


@pytest.mark.parametrize(("quant", "format"), [(None, "bf16"), ("mxfp4", "mxfp4"), ("q8_0", "q8_0")])
def test_transposed_experts_are_turned(quant: str | None, format: Format, tmp_path: Path) -> None:
    _, meant = gpt_oss_as_shipped()
    plain = {name: tensor.bfloat16() for name, tensor in meant.items()}
    model = pull(
        str(write_checkpoint(tmp_path / "c", plain, GPT_OSS)),
        PullOptions(quant=quant),
        home=tmp_path / "home",
        portions=Portions(segment_bytes=1000),  # less than the columns of one expert
    )
    assert verify(model) == []
    for layer, expert in ((0, 1), (1, 2)):
        wanted = meant_parts(plain, layer, expert)
        for name, (found, values) in parts_of(model, layer, expert).items():
            assert found == ("bf16" if name.endswith("bias") else format)
            if found != "q8_0":  # what was MXFP4 before loses nothing by becoming it again
                assert torch.equal(values, wanted[name]), name
            else:
                assert (values - wanted[name]).abs().max() < 0.01 * wanted[name].abs().max()


def test_mxfp4_without_its_scales_is_refused_by_name(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.experts.down_proj"
    shipped, _ = gpt_oss_as_shipped()
    cut = shipped | {f"{name}_scales": shipped[f"{name}_scales"][:, :1].contiguous()}
    with pytest.raises(CheckpointError, match=rf"'{name}_scales' has shape .* '{name}_blocks' implies"):
        pull(str(write_checkpoint(tmp_path / "a", cut, GPT_OSS | MXFP4)), home=tmp_path / "home")
    del shipped[f"{name}_scales"]
    with pytest.raises(CheckpointError, match=f"lacks tensor '{name}_scales'"):
        pull(str(write_checkpoint(tmp_path / "b", shipped, GPT_OSS | MXFP4)), home=tmp_path / "home")


class Downloading(FolderSource):
    """A folder whose shards are "downloaded" before they are read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._folder = path
        self.fetched: list[str] = []

    def fetch_bytes(self, shard: str, folder: Path) -> int:
        return 0 if (folder / shard).exists() else self.shard_bytes(shard)

    def open_shard(self, shard: str, folder: Path) -> Path:
        if not (folder / shard).exists():
            shutil.copyfile(self._folder / shard, folder / shard)
            self.fetched.append(shard)
        return folder / shard

    def release_shard(self, shard: str, folder: Path, *, keep: bool) -> None:
        (folder / shard).unlink(missing_ok=True)


def test_a_shard_stays_until_no_other_needs_its_scales_and_is_fetched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = write_checkpoint(
        tmp_path / "c", in_fp8(random_tensors(CUT_TILES))[0], CUT_TILES | FP8, order=lambda name: name.endswith("_inv")
    )  # all scales in the last shards
    source = Downloading(checkpoint)
    monkeypatch.setattr(install, "FolderSource", lambda *_: source)
    model = pull(str(checkpoint), home=tmp_path / "home")
    assert sorted(source.fetched) == list(source.shards.files)
    monkeypatch.undo()
    assert weights(model) == weights(pull(str(checkpoint), home=tmp_path / "other"))


def test_a_pull_that_was_killed_fetches_scales_again_that_it_still_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = write_checkpoint(
        tmp_path / "c",
        in_fp8(random_tensors(CUT_TILES))[0],
        CUT_TILES | FP8,
        order=lambda name: not name.endswith("_inv"),
    )  # all scales in the first shards
    monkeypatch.setattr(install, "FolderSource", lambda *_: Downloading(checkpoint))
    real, calls = convert.convert_shard, []

    def convert_two(*args: Any) -> Losses:
        calls.append(1)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(steps, "convert_shard", convert_two)
    with pytest.raises(KeyboardInterrupt):
        pull(str(checkpoint), home=tmp_path / "home")
    for path in (tmp_path / "home").glob("partial/*/downloads/*"):
        path.unlink()
    monkeypatch.setattr(steps, "convert_shard", real)
    model = pull(str(checkpoint), home=tmp_path / "home")
    assert len(calls) == 3 and verify(model) == []
    monkeypatch.undo()
    assert weights(model) == weights(pull(str(checkpoint), home=tmp_path / "other"))


def test_deepseek_v4_is_read_as_published(tmp_path: Path) -> None:
    """FP8 and FP4 under one quantization_config, scales that are powers of two, experts by int64, another head."""
    config = DEEPSEEK_V4 | {"hidden_size": 128, "moe_intermediate_size": 64, "expert_dtype": "fp4"} | FP8
    plan, generator = family_of(config).tensors, torch.Generator().manual_seed(3)
    shipped, meant = Checkpoint(), Checkpoint()
    for name, tensor in random_tensors(config).items():
        scales = name.removesuffix("weight") + "scale"
        if name in plan.experts[0]:
            found, meant[name] = oracle.mxfp4(tensor.shape[0], tensor.shape[1], generator, deepseek=True)
            shipped |= {name: found["weight"], scales: found["weight_scale"]}
        elif name in plan.matrices and "compressor" not in name:
            codes, exponents = tensor.to(torch.float8_e4m3fn), [-(-size // 128) for size in tensor.shape]
            factors = torch.randint(110, 122, exponents, dtype=torch.uint8, generator=generator)
            shipped |= {name: codes, scales: factors.view(torch.float8_e8m0fnu)}
            each = factors.repeat_interleave(128, 0).repeat_interleave(128, 1)[: len(tensor), : tensor.shape[1]]
            meant[name] = codes.float() * 2.0 ** (each.float() - 127)
        elif name in plan.whole:
            meant[name] = torch.randint(0, plan.whole[name], tensor.shape, generator=generator)
            shipped[name] = meant[name]
        else:
            shipped[name.replace("lm_head", "head")] = meant[name] = tensor
    ahead = {"mtp.0.attn.wq_a.weight": shipped["layers.0.attn.wq_a.weight"], "mtp.0.norm.weight": torch.ones(3)}
    model = pull(str(write_checkpoint(tmp_path / "c", shipped | ahead, config)), home=tmp_path / "home")
    assert verify(model) == [] and model.manifest.formats.fallbacks == ()
    dense = safetensors.torch.load_file(model.dense_path)
    assert dense.keys() == plan.dense.keys()
    for name, tensor in dense.items():
        assert torch.equal(tensor.float(), meant[name].float()), name
    names = {"gate": "w1", "up": "w3", "down": "w2"}
    for layer, expert in ((0, 0), (3, 7)):
        for part, (format, weights) in parts_of(model, layer, expert).items():
            assert format == "mxfp4"
            assert torch.equal(weights, meant[f"layers.{layer}.ffn.experts.{expert}.{names[part]}.weight"])
    entry = model.manifest.ahead
    assert entry is not None and safetensors.torch.load_file(model.path / entry.file).keys() == ahead.keys()
    table = shipped[TABLE].clone()
    table[3, 1] = 8
    wrong = write_checkpoint(tmp_path / "wrong", shipped | {TABLE: table}, config)
    with pytest.raises(CheckpointError, match=f"{TABLE}': has numbers from 0 to 8, and must be below 8"):
        pull(str(wrong), home=tmp_path / "home")
    wrong = write_checkpoint(tmp_path / "floats", shipped | {TABLE: shipped[TABLE].float()}, config)
    with pytest.raises(UnsupportedModelError, match=f"{TABLE}' has dtype F32, must be I64 or I32"):
        pull(str(wrong), home=tmp_path / "home")
