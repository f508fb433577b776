"""What is no number is told by its tensor: by the pull, and by verify of what is stored already."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moeinf.errors import CheckpointError
from moeinf.models.family import family_of
from moeinf.store.dense import dense_tensors
from moeinf.store.library import StoredModel
from moeinf.store.manifest import model_id
from moeinf.store.numbers import first_not_finite, floats, rounded
from moeinf.store.verify import verify
from moeinf.types import DType
from tests.support.checkpoints import Checkpoint, fused, in_mxfp4, random_tensors, write_checkpoint
from tests.support.configs.glm4_moe import CONFIGS as GLM
from tests.support.configs.gpt_oss import CONFIGS as GPT_OSS
from tests.support.pairs.pulled import pulled

MXFP4 = GPT_OSS["gpt_oss"]
UP = "model.layers.1.mlp.experts.3.up_proj.weight"
NAMES = ["model.embed_tokens.weight", "lm_head.weight", "model.norm.weight", "model.layers.0.mlp.gate.weight", UP]
TORCH: dict[DType, torch.dtype] = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
BAD = {"NaN": torch.nan, "infinity": torch.inf, "minus infinity": -torch.inf}


def with_bad(tensors: Checkpoint, name: str, bad: float, at: int = -1) -> Checkpoint:
    changed = tensors[name].clone()
    changed.view(-1)[at] = bad
    return tensors | {name: changed}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("quant", ["keep", "q8_0", "q4_k"])
def test_a_pull_refuses_it_by_the_name_of_the_tensor(quant: str, name: str, bad: float, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", with_bad(random_tensors(), name, bad))
    with pytest.raises(CheckpointError) as caught:
        pulled(tmp_path / "c", quant)
    assert f"tensor {name!r}" in str(caught.value)
    assert any(words in str(caught.value) for words in ("NaN or infinite", "only finite weights"))


@pytest.mark.parametrize("dtype", TORCH.values(), ids=TORCH)
def test_a_pull_says_which_element_it_is_and_what_to_do(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in random_tensors().items()}
    write_checkpoint(tmp_path / "c", with_bad(tensors, UP, torch.nan, 1234))
    with pytest.raises(CheckpointError, match=r"element 1234 is NaN or infinite; .*fetch the checkpoint again"):
        pulled(tmp_path / "c")
    both = fused(tensors)
    name = "model.layers.1.mlp.experts.gate_up_proj"
    write_checkpoint(tmp_path / "c", with_bad(both, name, torch.inf, 70000))
    with pytest.raises(CheckpointError, match=f"{name}.*element 70000 is"):
        pulled(tmp_path / "c")


def test_a_bias_of_minus_infinity_switches_an_expert_off(tmp_path: Path) -> None:
    config = GLM["glm4_moe"]
    name = next(name for name in family_of(config).tensors.dense if name.endswith("e_score_correction_bias"))
    tensors = random_tensors(config)
    stored, _ = pulled(write_checkpoint(tmp_path / "c", with_bad(tensors, name, -torch.inf), config))
    assert verify(stored) == []
    for bad in (torch.inf, torch.nan):
        with pytest.raises(CheckpointError, match="e_score_correction_bias"):
            pulled(write_checkpoint(tmp_path / "c", with_bad(tensors, name, bad), config))


def test_a_scale_of_mxfp4_blocks_that_is_no_number_is_refused_before_it_is_stored(tmp_path: Path) -> None:
    shipped = random_tensors(MXFP4, layout=0)
    shipped = {name: tensor for name, tensor in shipped.items() if not name.endswith("_blocks")} | in_mxfp4(MXFP4)
    pulled(write_checkpoint(tmp_path / "c", shipped, MXFP4))
    name = "model.layers.1.mlp.experts.down_proj_scales"
    shipped[name].view(-1)[-1] = 255
    with pytest.raises(CheckpointError, match="down_proj_blocks': has a scale that is NaN"):
        pulled(write_checkpoint(tmp_path / "c", shipped, MXFP4))


def spoilt(stored: StoredModel, file: str, offset: int) -> StoredModel:
    """As a version of moeinf that did not look has stored it: with sums that agree."""
    path = stored.path / file
    data = bytearray(path.read_bytes())
    data[offset : offset + 2] = b"\xc0\x7f"  # NaN in bf16
    path.write_bytes(data)
    manifest = stored.manifest
    digest = hashlib.sha256(data).hexdigest()
    files = tuple(replace(each, sha256=digest) if each.file == file else each for each in manifest.files)
    stride = manifest.layout.stride_bytes
    shards = tuple(
        replace(
            each, sha256=tuple(hashlib.sha256(data[i : i + stride]).hexdigest() for i in range(0, len(data), stride))
        )
        if each.file == file
        else each
        for each in manifest.shards
    )
    files = tuple(each for each in files if each.file != "checksums.bin")
    (stored.path / "checksums.bin").unlink()
    text = replace(manifest, files=files, shards=shards).dumps()
    (stored.path / "manifest.json").write_bytes(text)
    target = stored.path.with_name(model_id(text))
    stored.path.rename(target)
    return StoredModel(stored.name, target.name, target)


def test_verify_finds_it_in_what_is_stored_already(tmp_path: Path) -> None:
    stored, _ = pulled(write_checkpoint(tmp_path / "c"))
    norm = next(spec for spec in dense_tensors(stored.dense_path) if spec.name == "model.norm.weight")
    up = next(spec for spec in stored.manifest.layout.tensors if spec.name == "up")
    in_expert = 3 * stored.manifest.layout.stride_bytes + up.offset_bytes + 8
    dense = spoilt(stored, "dense.safetensors", norm.offset_bytes + 6)
    assert verify(dense) == ["dense.safetensors: tensor 'model.norm.weight': element 3 is NaN or infinite"]
    stored, _ = pulled(write_checkpoint(tmp_path / "d" / "c"))
    expert = spoilt(stored, stored.manifest.shards[1].file, in_expert)
    assert verify(expert) == [f"{stored.manifest.shards[1].file}: expert 3: tensor 'up': element 4 is NaN or infinite"]


@pytest.mark.parametrize("dtype", TORCH)
@given(data=st.data())
def test_the_first_bad_element_is_found_in_every_length(dtype: DType, data: st.DataObject) -> None:
    length = data.draw(st.sampled_from([1, 2, 63, 65536, 65537, 131072, 200000]))
    tensor = torch.full((length,), torch.finfo(TORCH[dtype]).max, dtype=TORCH[dtype])
    tensor[::2] *= -1
    places = sorted(data.draw(st.sets(st.integers(0, length - 1), max_size=3)))
    for at in places:
        tensor[at] = data.draw(st.sampled_from([torch.nan, torch.inf, -torch.inf]))
    bytes_of = memoryview(tensor.view(torch.uint8).numpy().tobytes())
    assert first_not_finite(bytes_of, dtype, "x.weight") == (places[0] if places else -1)
    kept = tensor.isnan() | (tensor == torch.inf)
    of_bias = int(kept.nonzero()[0]) if kept.any() else -1
    assert first_not_finite(bytes_of, dtype, "x.bias") == of_bias


@pytest.mark.parametrize("dtype", TORCH)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1))
def test_numbers_are_read_and_rounded_as_torch_does(dtype: DType, numbers: list[float]) -> None:
    tensor = torch.tensor(numbers, dtype=torch.float32)
    wanted = tensor.to(TORCH[dtype])
    assert np.array_equal(rounded(tensor.numpy(), dtype), wanted.float().numpy())
    data: Any = memoryview(wanted.view(torch.uint8).numpy().tobytes())
    assert np.array_equal(floats(data, dtype), wanted.float().numpy())
