"""Which files of a folder are read: those that transformers reads, wherever links lead."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from moeinf.config.pull_options import PullOptions
from moeinf.errors import MoeinfError
from moeinf.pull.pull import pull
from moeinf.store.library import StoredModel
from tests.oracles.coded_weights import awq
from tests.support.checkpoints import CONFIG, Checkpoint, content, random_tensors, write_checkpoint

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SHARD = "model-00001-of-00004.safetensors"
NORM = "model.norm.weight"


def stored(folder: Path) -> StoredModel:
    return pull(str(folder), PullOptions(name="c"), home=folder.parent / "home")


def refused(folder: Path) -> str:
    with pytest.raises(MoeinfError) as caught:
        stored(folder)
    return str(caught.value)


def weights(folder: Path) -> dict[str, str]:
    found = content(stored(folder).path)
    return {name: sum for name, sum in found.items() if name.endswith((".bin", ".safetensors"))}


def weight_map(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / INDEX).read_text())["weight_map"]
    return found


def write_index(folder: Path, found: dict[str, str]) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": found}))


def add_shard(folder: Path, name: str, tensors: Checkpoint) -> None:
    safetensors.torch.save_file(tensors, folder / name, metadata={"format": "pt"})


def test_the_index_decides_between_two_copies_of_a_tensor(tmp_path: Path) -> None:
    tensors = random_tensors()
    other = {NORM: tensors[NORM] + 1, "model.embed_tokens.weight": tensors["model.embed_tokens.weight"] * 2}
    wanted = weights(write_checkpoint(tmp_path / "a" / "c", tensors | {NORM: other[NORM]}))
    for overlay in ("a-overlay.safetensors", "z-overlay.safetensors"):  # in front of the others, and behind them
        folder = write_checkpoint(tmp_path / overlay / "c", tensors)
        add_shard(folder, overlay, other)
        write_index(folder, weight_map(folder) | {NORM: overlay})
        assert weights(folder) == wanted


QUERIES = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize("named", ["weight", "qweight"])
def test_the_index_decides_between_two_codings_of_a_matrix(named: str, tmp_path: Path) -> None:
    """As where a shard is used anew whose other tensors have been coded since."""
    config = CONFIG | {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32}}
    plain = random_tensors(config)
    own = {f"{QUERIES}.weight": plain.pop(f"{QUERIES}.weight")}
    rows, cols = own[f"{QUERIES}.weight"].shape
    coded, _ = awq(rows, cols, torch.Generator().manual_seed(1))
    other = {f"{QUERIES}.{name}": tensor for name, tensor in coded.items()}
    counts, stale = (own, other) if named == "weight" else (other, own)
    wanted = weights(write_checkpoint(tmp_path / "a" / "c", plain | counts, config))
    folder = write_checkpoint(tmp_path / "b" / "c", plain | counts, config)
    add_shard(folder, "more.safetensors", {**stale, NORM: plain[NORM]})
    write_index(folder, weight_map(folder) | {NORM: "more.safetensors"})
    assert weights(folder) == wanted
    shutil.rmtree(folder.parent / "home")
    write_index(folder, weight_map(folder) | dict.fromkeys(stale, "more.safetensors"))
    message = refused(folder)
    assert f"'{QUERIES}.weight' and as '{QUERIES}.qweight'; remove one of the two" in message


def test_two_copies_of_which_the_index_names_none_are_refused_by_name(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    add_shard(
        folder, "more.safetensors", {NORM: random_tensors()[NORM], "model.layers.0.mlp.gate.weight": torch.ones(1)}
    )
    found = weight_map(folder)
    del found[NORM]
    write_index(folder, found | {"nothing": "more.safetensors"})
    message = refused(folder)
    assert f"tensor {NORM!r} is also in" in message and "remove one of the two" in message


def stray(folder: Path) -> None:
    add_shard(folder, "stray.safetensors", {NORM: torch.zeros(3)})


def moved(folder: Path) -> None:
    """An index that puts tensors into other files than those that have them, and names some that are gone."""
    found = weight_map(folder)
    files = sorted(set(found.values()))
    write_index(
        folder, {name: files[(files.index(file) + 1) % 4] for name, file in found.items()} | {"model.gone": SHARD}
    )


def of_another_split(folder: Path) -> None:
    write_index(folder, {name: file.replace("of-00004", "of-00009") for name, file in weight_map(folder).items()})
    add_shard(folder, SINGLE, random_tensors())


def empty(folder: Path) -> None:
    write_index(folder, {})
    add_shard(folder, SINGLE, random_tensors())


def single_beside(folder: Path) -> None:
    for file in set(weight_map(folder).values()):
        add_shard(folder, file, {name: torch.zeros(1) for name, each in weight_map(folder).items() if each == file})
    add_shard(folder, SINGLE, random_tensors())


def no_json(folder: Path) -> None:
    add_shard(folder, SINGLE, random_tensors())
    (folder / INDEX).write_text("not JSON")


@pytest.mark.parametrize("change", [stray, moved, of_another_split, empty, single_beside, no_json])
def test_a_checkpoint_that_transformers_reads_is_read_alike(change: Callable[[Path], None], tmp_path: Path) -> None:
    wanted = weights(write_checkpoint(tmp_path / "a" / "c"))
    folder = write_checkpoint(tmp_path / "b" / "c")
    change(folder)
    assert weights(folder) == wanted


def test_an_index_of_another_split_says_which_file_it_does_not_know(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    write_index(folder, {name: file.replace("of-00004", "of-00009") for name, file in weight_map(folder).items()})
    message = refused(folder)
    assert "lacks model-00001-of-00009.safetensors" in message
    assert f"{SHARD} is not in that index: fetch the index that belongs to it" in message


def test_shards_without_an_index_are_told_from_no_checkpoint(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    (folder / INDEX).unlink()
    assert f"has {SHARD}, but no" in (message := refused(folder)) and message.endswith("fetch the index")


def test_a_missing_head_leads_to_the_flag_that_ties_it(tmp_path: Path) -> None:
    tensors = random_tensors()
    del tensors["lm_head.weight"]
    assert "let config.json say tie_word_embeddings" in refused(write_checkpoint(tmp_path / "c", tensors))


def test_an_empty_index_alone_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    write_index(folder, {})
    assert f"{INDEX}: weight_map is missing or empty; fetch that file again" in refused(folder)


def test_files_may_be_links_as_in_the_hub_s_cache(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "models--org--c" / "snapshots" / "c")
    blobs = tmp_path / "models--org--c" / "blobs"
    blobs.mkdir()
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(blobs / str(number))
        path.symlink_to(f"../../blobs/{number}")
    (tmp_path / "link").symlink_to(folder)
    assert pull(str(tmp_path / "link"), PullOptions(name="c"), home=tmp_path / "home").name == "c:latest"
    (folder / "NOTICE").symlink_to("config.json")  # within the folder
    assert pull(str(folder), home=tmp_path / "home").name == "c:latest"


@pytest.mark.parametrize("name", [INDEX, "config.json", "tokenizer.json", "LICENSE"])
@pytest.mark.parametrize("target", ["../secret", "sub/secret", "/etc/passwd"])
def test_a_link_to_text_of_another_name_out_of_the_folder_is_refused(name: str, target: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    (folder / "sub").mkdir()
    for place in (tmp_path, folder / "sub"):
        (place / "secret").write_bytes((folder / name).read_bytes())
    (folder / name).unlink()
    (folder / name).symlink_to(target)
    assert f"{folder / name} is a link to " in refused(folder)


def test_an_overlay_of_links_to_another_folder_is_read(tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "a" / "c")
    wanted = weights(base)
    folder = tmp_path / "b" / "c"
    folder.mkdir(parents=True)
    for path in base.iterdir():
        (folder / path.name).symlink_to(path)
    assert weights(folder) == wanted
    renamed = tmp_path / "finetune-7.bin"
    shutil.move(base / SHARD, renamed)
    (folder / SHARD).unlink()
    (folder / SHARD).symlink_to(renamed)
    assert weights(folder) == wanted


def test_a_download_that_links_into_the_hub_s_cache_is_read(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    blobs = tmp_path / "hub" / "models--org--c" / "blobs"
    blobs.mkdir(parents=True)
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(blobs / str(number))
        path.symlink_to(blobs / str(number))
    assert stored(folder).name == "c:latest"
