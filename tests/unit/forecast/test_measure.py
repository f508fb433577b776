"""A machine is measured once, in whatever room it has, and its rates are not taken for those of another."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from moeinf.bench.forecast.checkup import _store
from moeinf.config import RuntimeConfig
from moeinf.engine.speed import kernel_rates
from moeinf.engine.speed.rates import Kind, Rates
from moeinf.engine.speed.rates_file import load, save
from moeinf.errors import DiskSpaceError, OutOfMemoryError, StoreError
from moeinf.forecast import known, measure, products
from moeinf.forecast.known import known_rates
from moeinf.hardware import Machine
from moeinf.store.library import Library, StoredModel
from tests.support.rates import rates_of_this_machine


def test_rates_of_another_machine_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = rates_of_this_machine()
    calls: list[str] = []

    def measured(*_: object) -> Rates:
        calls.append("measured")
        return mine

    monkeypatch.setattr(known, "measure", measured)
    for change in ({"cpu": "another"}, {"memory_bytes": 1}):
        save(replace(mine, conditions=replace(mine.conditions, **change)), tmp_path)
        calls.clear()
        assert known_rates(tmp_path, RuntimeConfig()) == mine and calls == ["measured"]
        assert known_rates(tmp_path, RuntimeConfig()) == mine and calls == ["measured"]  # now they are kept
    assert known_rates(tmp_path, RuntimeConfig(), again=True) == mine and calls == ["measured"] * 2
    known_rates(tmp_path, RuntimeConfig.of(threads=mine.conditions.threads + 1))
    assert calls == ["measured"] * 3
    assert known_rates(tmp_path, RuntimeConfig()) == mine and calls == ["measured"] * 3  # kept beside the others


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is measured, in next to no time and room."""
    monkeypatch.setattr(measure, "FORMATS", ("q4_k",))
    monkeypatch.setattr(measure, "_READ_S", 0.01)
    monkeypatch.setattr(measure, "_FILE_BYTES", 64 << 20)
    monkeypatch.setattr(measure, "SPAN_BYTES", 64 << 20)
    monkeypatch.setattr(measure, "MAIN_KINDS", (Kind("q8_0", 256),))
    monkeypatch.setattr(kernel_rates, "_READING_BYTES", 16 << 20)
    monkeypatch.setattr(measure, "_DECODE_TOKENS", 4)
    monkeypatch.setattr(products, "_LEAST_S", 0.0)


def test_measuring_finds_rates_and_leaves_nothing_behind(quick: None, tmp_path: Path) -> None:
    said: list[str] = []
    rates = measure.measure(tmp_path, RuntimeConfig(), said.append)
    assert list(tmp_path.iterdir()) == []
    assert set(rates.disk) == set(measure.READ_BYTES) and all(rate > 0 for rate in rates.disk.values())
    for found in (rates.experts, rates.linear):
        assert set(found) == {"q4_k"} and all(seconds > 0 for seconds in found["q4_k"].seconds)
    assert rates.reading["q8_0"][256].share > 0
    assert rates.streamed_layer_s >= rates.layer_s >= 0
    assert any("disk" in line for line in said)
    assert load(save(rates, tmp_path)) == rates


def test_a_machine_without_room_is_told_so(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(measure, "machine", lambda: Machine(100 << 20, "machine", 1, 1 << 30))
        with pytest.raises(OutOfMemoryError, match=r"not enough memory to measure.*free some"):
            measure.measure(tmp_path, RuntimeConfig())
    monkeypatch.setattr(measure, "free_bytes", lambda folder: 1 << 20)
    with pytest.raises(DiskSpaceError, match=r"not enough disk space.*MOEINF_HOME"):
        measure.measure(tmp_path, RuntimeConfig())
    assert list(tmp_path.iterdir()) == []


def test_a_model_whose_file_has_gone_is_told_and_not_measured(
    demo: StoredModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a GGUF file that was used where it lay, and which somebody has deleted."""
    home = tmp_path / "home"
    shutil.copytree(demo.path.parents[1], home)
    monkeypatch.setattr(measure, "_FILE_BYTES", 1 << 20)
    paths = Library(home).find("demo").shard_paths
    with measure._files(home) as found:
        assert found == paths
    assert [each for each in _store(home) if each.remedy] == []
    paths[-1].unlink()
    with measure._files(home) as found:
        assert found != paths and all(path.exists() for path in found)
    (told,) = [each for each in _store(home) if each.remedy]
    assert f"{paths[-1]} has gone" in told.text and "`moeinf rm demo:latest`" in told.remedy


@pytest.mark.parametrize("least", [1 << 20, 1 << 40])
def test_a_store_that_is_read_only_is_measured_by_its_experts_or_said_to_be_so(
    least: int, demo: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**options: object) -> tuple[int, str]:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(options["dir"]))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(measure, "_LEAST_FILE_BYTES", least)
    home = demo.path.parents[1]
    if least < sum(demo.shard_sizes):
        with measure._files(home) as paths:
            assert paths == demo.shard_paths
    else:
        with pytest.raises(StoreError, match=r"Read-only file system.*MOEINF_HOME"), measure._files(home):
            pass
