"""Every flipped byte of a stored model is found, and named."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from moeinf.errors import StoreError
from moeinf.pull.pull import pull
from moeinf.store.library import StoredModel
from moeinf.store.verify import check_files, verify
from tests.support.checkpoints import content


@pytest.fixture
def model(demo: StoredModel, tmp_path: Path) -> StoredModel:
    """The demo in a store of its own."""
    home = demo.path.parents[1]
    shutil.copytree(home, tmp_path / "home")
    return StoredModel(demo.name, demo.id, tmp_path / "home" / "models" / demo.id)


def test_a_sound_model_has_no_faults_and_progress_adds_up(model: StoredModel) -> None:
    seen: list[int] = []
    assert verify(model, seen.append) == []
    assert sum(seen) == model.manifest.size_bytes


def test_one_flipped_bit_in_an_expert_is_named_by_shard_and_expert(model: StoredModel) -> None:
    generator, stride = random.Random(1), model.manifest.layout.stride_bytes
    flips = [(generator.randrange(6), generator.randrange(32)) for _ in range(12)]
    for layer, expert in flips:
        flip(model.path / f"experts-{layer:05d}.bin", expert * stride + generator.randrange(stride))
    assert verify(model) == [
        f"experts-{layer:05d}.bin: expert {expert} does not match its checksum" for layer, expert in sorted(set(flips))
    ]


def test_a_flipped_bit_in_any_other_file_is_named(model: StoredModel) -> None:
    names = [file.file for file in model.manifest.files]
    for number, name in enumerate(names):
        flip(model.path / name, number)
    assert verify(model) == [f"{name} does not match its checksum" for name in names]


def test_missing_and_truncated_files_are_named(model: StoredModel) -> None:
    (model.path / "experts-00001.bin").unlink()
    with open(model.path / "experts-00002.bin", "r+b") as file:
        file.truncate(5)
    faults = verify(model)
    assert faults[0] == "experts-00001.bin: No such file or directory"
    assert faults[1].startswith("experts-00002.bin is 5 bytes long, not ")
    with pytest.raises(StoreError, match=r"experts-00001\.bin: No such file"):
        check_files(model)


def test_a_pull_makes_a_model_anew_in_which_verify_saw_damage(model: StoredModel, demo: StoredModel) -> None:
    home = model.path.parents[1]
    flip(model.path / "experts-00003.bin", 1000)
    assert len(verify(model)) == 1
    again = pull("demo", home=home)
    assert verify(again) == [] and content(again.path) == content(demo.path)


def test_a_pull_notices_a_missing_file_by_itself(model: StoredModel, demo: StoredModel) -> None:
    (model.path / "experts-00001.bin").unlink()
    assert content(pull("demo", home=model.path.parents[1]).path) == content(demo.path)


def flip(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))
