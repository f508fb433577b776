"""A checkpoint that cannot be converted is refused in one line, before anything is written."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from moeinf.errors import CheckpointError, MoeinfError, UnsupportedModelError
from moeinf.pull.pull import plan_pull, pull
from tests.support.checkpoints import CONFIG, random_tensors, write_checkpoint

INDEX = "model.safetensors.index.json"
SHARD = "model-00001-of-00004.safetensors"
UP = "model.layers.1.mlp.experts.3.up_proj.weight"
NORM = "model.norm.weight"


def refused(folder: Path, tmp_path: Path) -> MoeinfError:
    """The error of a pull, after which the store holds nothing."""
    with pytest.raises(MoeinfError) as caught:
        pull(str(folder), home=tmp_path / "home")
    assert str(caught.value).isprintable()
    assert not list((tmp_path / "home").rglob("*.bin"))
    return caught.value


def edit_index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def test_a_folder_without_config_is_no_checkpoint(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    (folder / "config.json").unlink()
    assert "no config.json" in str(refused(folder, tmp_path))


def test_a_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "nowhere") in str(refused(tmp_path / "nowhere", tmp_path))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.Q4.gguf", "only GGUF files; name the one that you want"),
        ("pytorch_model.bin", "only PyTorch files; moeinf needs safetensors"),
        ("notes.txt", "neither model.safetensors nor"),
    ],
)
def test_weights_in_another_form_are_refused_by_name(name: str, words: str, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / name).touch()
    assert words in str(refused(folder, tmp_path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "bert", "num_experts": None}, "a family without experts"),
        (
            {"model_type": "jetmoe"},
            "'jetmoe' is a Mixture-of-Experts family that this version does not run: it needs attention that is given",
        ),
        ({"model_type": None}, "no model_type"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "quantised (aqlm)"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "quantised by MLX"),
        ({"quantization_config": {"group_size": 64, "bits": 4, "mode": "affine"}}, "quantised by MLX"),
        ({"hidden_size": "64"}, "hidden_size"),
    ],
)
def test_a_config_of_another_kind_is_refused_by_name(change: dict[str, object], words: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    (folder / "config.json").write_text(json.dumps(CONFIG | change))
    error = refused(folder, tmp_path)
    assert words in str(error) and isinstance(error, CheckpointError)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1, "a": 2}', "\ud800"])
def test_a_config_that_is_no_json_object_is_refused(text: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    assert "config.json" in str(refused(folder, tmp_path))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    (folder / SHARD).unlink()
    assert f"lacks {SHARD}" in str(refused(folder, tmp_path))


@pytest.mark.parametrize("cut", [1, 5000, 10**9])
def test_a_truncated_shard_is_named(cut: int, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    os.truncate(folder / SHARD, max(0, (folder / SHARD).stat().st_size - cut))
    message = str(refused(folder, tmp_path))
    assert SHARD in message and "truncated" in message


@pytest.mark.parametrize("name", [SHARD, "tokenizer.json", "one.gguf"])
def test_a_pointer_of_git_lfs_is_said_to_be_one(name: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    (folder / name).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 4096\n")
    message = str(refused(folder / name if name.endswith("gguf") else folder, tmp_path))
    assert f"{name} is a pointer of Git LFS" in message and "`git lfs pull`" in message


def test_a_shard_with_a_tail_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    with open(folder / SHARD, "ab") as file:
        file.write(b"x")
    assert "behind its last tensor" in str(refused(folder, tmp_path))


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "a/b.safetensors",
        "a\\b.safetensors",
        "..",
        "x.bin",
        "",
        ".x.safetensors",
        "a\0.safetensors",
        5,
        "x" * 4096 + ".safetensors",
    ],
)
def test_an_index_cannot_lead_out_of_the_folder(name: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    edit_index(folder, lambda weight_map: weight_map.update({NORM: name}))
    assert "not a plain safetensors file name" in str(refused(folder, tmp_path))


@pytest.mark.parametrize("special", ["fifo", "device", "folder", "dangling"])
def test_only_regular_files_are_shards(special: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    (folder / SHARD).unlink()
    if special == "fifo":
        os.mkfifo(folder / SHARD)
    elif special == "folder":
        (folder / SHARD).mkdir()
    else:
        (folder / SHARD).symlink_to("/dev/zero" if special == "device" else "/nowhere/at/all")
    assert SHARD in str(refused(folder, tmp_path))


def test_what_could_never_run_is_refused_before_the_first_shard(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    (folder / SHARD).unlink()
    (folder / SHARD).write_bytes(b"not looked at")
    tokenizer = (folder / "tokenizer.json").read_text()
    for name, text in (
        ("tokenizer.json", "{"),
        ("tokenizer.json", "{}"),
        ("tokenizer.json", ""),
        ("generation_config.json", "{"),
        ("generation_config.json", "[1]"),
        ("tokenizer_config.json", "nonsense"),
        ("special_tokens_map.json", "5"),
    ):
        (folder / name).write_text(text)
        message = str(refused(folder, tmp_path))
        assert message.startswith(f"the tokenizer of {folder} cannot be loaded (")
        assert message.endswith("; mend or replace the file, then pull")
        assert name == "tokenizer.json" or name in message
        (folder / name).unlink()
        (folder / "tokenizer.json").write_text(tokenizer)
    (folder / "tokenizer.json").unlink()
    assert f"{folder} has no tokenizer.json, without which it cannot run" in str(refused(folder, tmp_path))
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        plan_pull(str(folder), home=tmp_path / "home")


def test_a_gguf_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    assert "x.gguf is truncated inside its first bytes" in str(refused(tmp_path / "x.gguf", tmp_path))


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", INDEX])
def test_a_small_file_that_is_large_is_not_read(name: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    with open(folder / name, "ab") as file:
        file.truncate(65 << 20)
    tracemalloc.start()
    try:
        assert f"{name}: is {65 << 20} bytes long, more than" in str(refused(folder, tmp_path))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", [UP, NORM])
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    tensors = random_tensors()
    del tensors[name]
    folder = write_checkpoint(tmp_path / "c", tensors)
    assert f"lacks tensor '{name}'" in str(refused(folder, tmp_path))


@pytest.mark.parametrize("name", [UP, NORM])
def test_a_tensor_of_another_shape_is_named_with_both_shapes(name: str, tmp_path: Path) -> None:
    tensors = random_tensors()
    wanted = list(tensors[name].shape)
    tensors[name] = tensors[name].repeat(*[2] * tensors[name].dim())
    message = str(refused(write_checkpoint(tmp_path / "c", tensors), tmp_path))
    assert f"'{name}' has shape {[2 * size for size in wanted]}, config.json implies {wanted}" in message


def test_one_expert_of_another_dtype_is_named(tmp_path: Path) -> None:
    tensors = random_tensors()
    tensors[UP] = tensors[UP].float()
    message = str(refused(write_checkpoint(tmp_path / "c", tensors), tmp_path))
    assert f"'{UP}' is F32" in message and "one dtype" in message


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.float64])
def test_a_dtype_that_is_not_converted_is_named(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = random_tensors()
    tensors[UP] = tensors[UP].to(dtype)
    error = refused(write_checkpoint(tmp_path / "c", tensors), tmp_path)
    assert isinstance(error, UnsupportedModelError)
    assert UP in str(error) and "bf16, f16 and f32" in str(error)


def test_a_tensor_that_the_architecture_does_not_know_is_named(tmp_path: Path) -> None:
    tensors = random_tensors() | {"model.layers.0.mlp.shared_expert.up_proj.weight": torch.zeros(4)}
    message = str(refused(write_checkpoint(tmp_path / "c", tensors), tmp_path))
    assert "'model.layers.0.mlp.shared_expert.up_proj.weight' does not belong" in message


@pytest.mark.parametrize(("dtype", "name"), [(torch.float16, "f16"), (torch.float32, "f32")])
def test_other_floating_dtypes_are_kept_as_they_are(dtype: torch.dtype, name: str, tmp_path: Path) -> None:
    tensors = {key: tensor.to(dtype) for key, tensor in random_tensors().items()}
    model = pull(str(write_checkpoint(tmp_path / "c", tensors)), home=tmp_path / "home")
    assert model.manifest.info.dtype == name
    assert {spec.dtype for spec in model.manifest.layout.tensors} == {name}
