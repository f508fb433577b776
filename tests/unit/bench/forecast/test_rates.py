"""The rates of a machine: kept, read again, and not taken for those of another."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from moeinf.bench.forecast import known, measure, products
from moeinf.bench.forecast.checkup import _store
from moeinf.bench.forecast.known import known_rates
from moeinf.bench.forecast.rates import Kind, Products, Rates, Reading, file_of, load, nearest, save
from moeinf.config import RuntimeConfig
from moeinf.errors import DiskSpaceError, OutOfMemoryError, StoreError
from moeinf.hardware import Machine
from moeinf.store.library import Library, StoredModel
from tests.support.rates import PLAIN, rates_of_this_machine


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    assert load(save(PLAIN, tmp_path / "home")) == PLAIN
    slow, fast = Reading(4e9, 1e9), Reading(4e9, 3e9)
    more = PLAIN.with_reading({Kind("q4_k", 512): slow, Kind("q4_k", 256): fast}).with_reading({Kind("f32", 7): fast})
    assert load(save(more, tmp_path / "home")) == more
    assert more.reading_of(Kind("q4_k", 256)) == fast and more.reading_of(Kind("f32", 8)) is None
    assert (slow.share, fast.share) == (0.25, 0.75)


def test_rates_of_other_threads_are_kept_beside(tmp_path: Path) -> None:
    other = replace(PLAIN, threads=PLAIN.threads + 1)
    paths = [save(PLAIN, tmp_path), save(other, tmp_path)]
    assert [load(path) for path in paths] == [PLAIN, other]
    assert paths == [file_of(tmp_path, each.isa, each.threads) for each in (PLAIN, other)]


@pytest.mark.parametrize(
    "change",
    [
        {"version": 0},
        {"disk": {}},
        {"disk": {"1048576": "fast"}},
        {"disk": {"1048576": float("nan")}},
        {"memory": -1},
        {"experts": {}},
        {"experts": {"bf16": {"rows": [1], "seconds": []}}},
        {"linear": []},
        {"reading": {"q4_k": 0.5}},
        {"reading": {"q4_k": {"512": {"plain": 1e9}}}},
        {"reading": {"q4_k": {"512": {"plain": 1e9, "product": 0}}}},
        {"reading": {"q4_k": {"512": {"plain": 1e9, "product": "most"}}}},
        {"surprise": 1},
        {"threads": True},
    ],
)
def test_a_file_that_is_not_sound_counts_as_none(change: dict[str, object], tmp_path: Path) -> None:
    path = save(PLAIN, tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert load(path) is None


@pytest.mark.parametrize("content", ["", "[]", "{", "{}"])
def test_no_json_of_rates_counts_as_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "rates.json").write_text(content)
    assert load(tmp_path / "rates.json") is None
    assert load(tmp_path / "nowhere.json") is None


def test_products_lie_on_lines_between_what_was_measured() -> None:
    measured = Products((1, 16, 64), (1.0, 4.0, 10.0))
    assert [measured.of(rows) for rows in (0.5, 1, 8.5, 16, 40, 64)] == [1, 1, 2.5, 4, 7, 10]
    assert measured.of(640) == 100  # many rows take as long each


def test_a_format_that_was_not_measured_is_taken_for_the_one_of_as_many_bits() -> None:
    few, many = Products((1,), (1.0,)), Products((1,), (2.0,))
    assert nearest({"q4_k": few, "bf16": many}, "iq4_xs") is few
    assert nearest({"q4_k": few, "bf16": many}, "f16") is many


def test_reads_are_as_fast_as_those_of_the_nearest_size() -> None:
    assert [PLAIN.disk_rate(size) for size in (1, 1 << 20, 3 << 20, 1 << 30)] == [1e9, 1e9, 2e9, 2e9]


def test_rates_of_another_machine_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = rates_of_this_machine()
    calls: list[str] = []

    def measured(*_: object) -> Rates:
        calls.append("measured")
        return mine

    monkeypatch.setattr(known, "measure", measured)
    for other in (replace(mine, cpu="another"), replace(mine, memory_bytes=1)):
        save(other, tmp_path)
        calls.clear()
        assert known_rates(tmp_path, RuntimeConfig()) == mine and calls == ["measured"]
        assert known_rates(tmp_path, RuntimeConfig()) == mine and calls == ["measured"]  # now they are kept
    assert known_rates(tmp_path, RuntimeConfig(), again=True) == mine and calls == ["measured"] * 2
    known_rates(tmp_path, RuntimeConfig(threads=mine.threads + 1))
    assert calls == ["measured"] * 3
    assert known_rates(tmp_path, RuntimeConfig()) == mine and calls == ["measured"] * 3  # kept beside the others


def test_weights_that_are_asked_for_are_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "measure", lambda *_: pytest.fail("the whole machine is measured"))
    asked: list[list[Kind]] = []
    half = Reading(2e9, 1e9)

    def measured(config: RuntimeConfig, kinds: list[Kind]) -> dict[Kind, Reading]:
        asked.append(kinds)
        return dict.fromkeys(kinds, half)

    monkeypatch.setattr(known, "measure_reading", measured)
    save(rates_of_this_machine(), tmp_path)
    one, other = Kind("q4_k", 512), Kind("bf16", 7)
    assert known_rates(tmp_path, RuntimeConfig()) == rates_of_this_machine() and asked == []
    assert known_rates(tmp_path, RuntimeConfig(), kinds=[one]).reading == {"q4_k": {512: half}}
    found = known_rates(tmp_path, RuntimeConfig(), kinds=[one, other])
    assert found.reading == {"q4_k": {512: half}, "bf16": {7: half}} and asked == [[one], [other]]
    assert known_rates(tmp_path, RuntimeConfig(), kinds=[other, one]) == found and len(asked) == 2


def test_reading_is_measured_where_there_is_room_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_READING_BYTES", 16 << 20)
    kinds = [Kind("q8_0", 96), Kind("f32", 7)]
    said: list[str] = []
    found = measure.measure_reading(RuntimeConfig(threads=1), kinds, said.append)
    assert set(found) == set(kinds) and all(min(each.plain, each.product) > 0 for each in found.values())
    assert any("q8_0 of 96" in line for line in said)
    monkeypatch.setattr(measure, "machine", lambda: Machine(60 << 20, "machine", 1, 1 << 30))
    assert measure.measure_reading(RuntimeConfig(threads=1), kinds) == {}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is measured, in next to no time and room."""
    monkeypatch.setattr(measure, "FORMATS", ("q4_k",))
    monkeypatch.setattr(measure, "_READ_S", 0.01)
    monkeypatch.setattr(measure, "_FILE_BYTES", 64 << 20)
    monkeypatch.setattr(measure, "SPAN_BYTES", 64 << 20)
    monkeypatch.setattr(measure, "MAIN_KINDS", (Kind("q8_0", 256),))
    monkeypatch.setattr(measure, "_READING_BYTES", 16 << 20)
    monkeypatch.setattr(measure, "_DECODE_TOKENS", 4)
    monkeypatch.setattr(products, "_LEAST_S", 0.0)
    monkeypatch.setattr(products, "_ROUNDS", 1)


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
