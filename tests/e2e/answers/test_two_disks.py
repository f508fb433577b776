"""Experts on a second disk, whole or divided: the same tokens, whatever is missing, damaged or refused there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeinf.bench.disk_speed import disk_bytes_per_s
from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.engine.worker import WorkerExperts
from moeinf.errors import ExpertReadError, StoreError, UsageError
from moeinf.pull.pull import ensure, pull
from moeinf.pull.spreading import divide, gather, spread
from moeinf.runtime.policy.eviction import POLICIES
from moeinf.store.library import StoredModel
from moeinf.store.spread.copy_list import Copy, CopyList
from moeinf.store.verify import verify
from tests.support.checkpoints import write_checkpoint
from tests.support.converter.meant import meant
from tests.support.converter.record import checkpoint
from tests.support.gguf_files import write_gguf
from tests.support.mixed_gguf import small, without_vocabulary

PROMPT = "Once upon a time, in a village by the sea, there was a fisherman who said:"
ARRANGEMENTS: dict[str, Callable[[StoredModel, Path], Copy]] = {"copied": spread, "divided": divide}


@pytest.fixture
def stored(tmp_path: Path) -> StoredModel:
    """The demo in a store of its own."""
    return ensure("demo", home=tmp_path / "home")


@pytest.fixture
def second(tmp_path: Path) -> Path:
    folder = tmp_path / "second"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def expected(demo: StoredModel) -> list[int]:
    return tokens(demo)[0]


def tokens(stored: StoredModel, **options: Any) -> tuple[list[int], list[str]]:
    """The greedy tokens, and what was said."""
    said: list[str] = []
    config = RuntimeConfig.of(**{"device": "cpu", "threads": 1, "expert_cache": "20%"} | options)
    with Model(stored, config, Reporting(notify=said.append)) as model:
        answer = model.generate(PROMPT, model.params(temperature=0.0, num_predict=24, stop=()))
        model.tier.check_integrity()
        return answer.token_ids, said


def on_disk(folder: Path) -> int:
    """What the files of experts take of a disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.glob("experts-*"))


def overwrite(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def spoil_all(folder: Path) -> None:
    """Changes a byte of every 4 KiB."""
    for path in folder.glob("experts-*"):
        for offset in range(100, path.stat().st_size, 4096):
            overwrite(path, offset)


@pytest.mark.parametrize("how", ARRANGEMENTS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"expert_cache": "100%"},
        {"reader": "pure"},
        {"direct_io": False},
        {"prefetch": False},
        {"queue_depth": 1},
        {"verify_reads": True},
        *({"policy": policy} for policy in POLICIES),
    ],
    ids=str,
)
def test_the_tokens_are_the_same(
    how: str, options: dict[str, Any], stored: StoredModel, second: Path, expected: list[int]
) -> None:
    ARRANGEMENTS[how](stored, second)
    assert tokens(stored, **options)[0] == expected
    assert tokens(stored, also=str(second), **options)[0] == expected


def test_both_disks_are_read(stored: StoredModel, second: Path) -> None:
    spread(stored, second)
    with Model(stored, RuntimeConfig.of(device="cpu", threads=1, expert_cache="100%")) as model:
        reader: Any = model.runner.reader
        assert reader.bytes_read_of(0) > 0 and reader.bytes_read_of(1) > 0
        assert reader.bytes_read_of(0) + reader.bytes_read_of(1) == reader.bytes_read()
        model.tier.check_integrity()
    with Model(stored, RuntimeConfig.of(device="cpu", threads=1, also="none")) as model:
        alone: Any = model.runner.reader
        with pytest.raises(IndexError, match="no disk 1"):
            alone.bytes_read_of(1)
    assert disk_bytes_per_s(stored, RuntimeConfig()) > 0


@pytest.mark.parametrize("reader", ["native", "pure"])
@pytest.mark.parametrize("damaged", ["store", "second"])
def test_a_damaged_disk_is_replaced_by_the_other(
    damaged: str, reader: str, stored: StoredModel, second: Path, expected: list[int]
) -> None:
    copy = spread(stored, second)
    spoil_all(stored.path if damaged == "store" else copy.path)
    found, said = tokens(stored, reader=reader)
    assert found == expected
    if reader == "native" or damaged == "store":  # the reader in Python asks the second disk for what the first lacks
        wrong, right = (stored.path, copy.path) if damaged == "store" else (copy.path, stored.path)
        line = next(each for each in said if "instead" in each)
        assert f"in {wrong}" in line and f"read from {right}" in line and "checksum" in line


@pytest.mark.parametrize("reader", ["native", "pure"])
def test_a_file_that_was_cut_while_it_is_open_is_replaced(
    reader: str, stored: StoredModel, second: Path, expected: list[int]
) -> None:
    spread(stored, second)
    said: list[str] = []
    config = RuntimeConfig.of(device="cpu", threads=1, expert_cache="20%", reader=reader)
    with Model(stored, config, Reporting(notify=said.append)) as model:
        for path in stored.shard_paths:
            os.truncate(path, 0)
        answer = model.generate(PROMPT, model.params(temperature=0.0, num_predict=24, stop=()))
    assert answer.token_ids == expected
    assert any("instead" in line and str(second) in line for line in said)


def test_damage_on_both_disks_is_one_line(stored: StoredModel, second: Path) -> None:
    copy = spread(stored, second)
    for folder in (stored.path, copy.path):
        spoil_all(folder)
    with pytest.raises(ExpertReadError, match="moeinf verify"):
        tokens(stored)


def test_damage_of_a_divided_model_is_one_line(stored: StoredModel, second: Path) -> None:
    copy = divide(stored, second)
    spoil_all(copy.path)
    with pytest.raises(ExpertReadError, match="moeinf verify"):
        tokens(stored)
    assert len(verify(stored)) == stored.manifest.moe.total_experts


def test_a_second_disk_that_is_away_is_said_and_left_out(
    stored: StoredModel, second: Path, expected: list[int]
) -> None:
    spread(stored, second)
    shutil.move(second, second.with_name("away"))
    found, said = tokens(stored)
    assert found == expected
    assert [line for line in said if str(second) in line] == [
        f"{second}, which has experts of demo:latest, is not there; mount its disk, or forget it (`moeinf spread "
        "demo:latest --gather`)"
    ]


def test_a_divided_model_without_its_second_disk_is_one_line(stored: StoredModel, second: Path) -> None:
    divide(stored, second)
    shutil.move(second, second.with_name("away"))
    for look in (tokens, verify):
        with pytest.raises(StoreError, match=r"is not there; mount its disk$"):
            look(stored)


def test_a_copy_that_lacks_a_file_is_left_out(stored: StoredModel, second: Path, expected: list[int]) -> None:
    copy = spread(stored, second)
    (copy.path / "experts-00002.bin").unlink()
    found, said = tokens(stored)
    assert found == expected and any("are not all there" in line and "moeinf spread" in line for line in said)
    os.truncate(copy.path / "experts-00001.bin", 4096)
    spread(stored, second)
    assert tokens(stored)[1] == tokens(stored, also=str(second))[1] == []


def test_a_copy_of_another_state_of_the_model_is_said(stored: StoredModel, second: Path) -> None:
    spread(stored, second)
    made = pull("demo", PullOptions(quant="q8_0", name="other"), home=stored.home)
    copies = CopyList(stored.home)
    [copy] = copies.all()
    copies.put(Copy(copy.folder, "0" * 12, made.name))
    said = tokens(made)[1]
    assert any(f"earlier state of {made.name}" in line and "moeinf spread" in line for line in said)
    spread(made, second)
    assert tokens(made)[1] == []


def test_a_folder_without_experts_of_the_model_is_said(stored: StoredModel, second: Path, expected: list[int]) -> None:
    found, said = tokens(stored, also=str(second))
    assert found == expected and any(str(second) in line and "moeinf spread" in line for line in said)


def test_a_copy_that_the_store_has_forgotten_is_read_where_it_is_named(stored: StoredModel, second: Path) -> None:
    copy = spread(stored, second)
    CopyList(stored.home).forget(copy)
    with Model(stored, RuntimeConfig.of(device="cpu", expert_cache="100%", also=str(second))) as model:
        reader: Any = model.runner.reader
        assert reader.bytes_read_of(1) > 0


@pytest.mark.parametrize("also", ["none", "/nowhere"])
def test_a_divided_model_needs_both_disks(also: str, stored: StoredModel, second: Path) -> None:
    divide(stored, second)
    with pytest.raises(UsageError, match=f"--also {also}: .* are divided .* --gather"):
        tokens(stored, also=also)


def test_a_divided_model_keeps_no_byte_twice_and_comes_back(
    stored: StoredModel, second: Path, expected: list[int]
) -> None:
    whole = [path.read_bytes() for path in stored.shard_paths]
    copy = divide(stored, second)
    here, there = on_disk(stored.path), on_disk(copy.path)
    assert abs(here + there - sum(stored.shard_sizes)) < 4096 * 16 and min(here, there) > 0
    assert verify(stored) == []
    assert divide(stored, second) == copy
    freed = gather(stored)
    assert freed == there and [path.read_bytes() for path in stored.shard_paths] == whole
    assert tokens(stored)[0] == expected and list(second.iterdir()) == []


def test_a_model_that_was_pulled_again_is_whole(stored: StoredModel, second: Path, expected: list[int]) -> None:
    copy = divide(stored, second)
    spoil_all(copy.path)
    assert verify(stored)
    again = pull("demo", home=stored.home)
    assert again.id == stored.id and verify(again) == []
    assert tokens(again)[0] == expected


def test_a_worker_reads_from_both(stored: StoredModel, second: Path) -> None:
    spread(stored, second)
    worker = WorkerExperts(stored, RuntimeConfig.of(threads=1))
    try:
        moe = stored.manifest.moe
        worker.only(np.ones(moe.num_keys, np.bool_), moe.top_k)
        reader: Any = worker._reader
        assert reader.bytes_read_of(0) + reader.bytes_read_of(1) == reader.bytes_read() > 0
    finally:
        worker.close()


def test_gguf_files_are_copied_and_stay_as_they_are(
    tmp_path: Path, second: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_vocabulary(monkeypatch)
    config, tensors = checkpoint("mixtral")
    config, tensors = meant(config), small(tensors)
    write_checkpoint(tmp_path / "checkpoint", tensors, config, num_shards=0)
    [file] = write_gguf(tmp_path / "model.gguf", config, tensors, kinds=lambda name: "F32")
    before = file.read_bytes()
    stored = ensure(str(file), home=tmp_path / "home")
    verify(stored)  # adds the checksums
    with pytest.raises(UsageError, match="--repack"):
        divide(stored, second)
    copy = spread(stored, second)
    [copied] = copy.path.iterdir()
    assert copied.read_bytes() == before == file.read_bytes()
    options = RuntimeConfig.of(context=32, threads=1, device="cpu", expert_cache="100%")
    with Model(stored, options) as model:
        reader: Any = model.runner.reader
        assert reader.bytes_read_of(0) > 0 and reader.bytes_read_of(1) > 0
