"""The rates of a machine: kept, read again, and what lies between those that were measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from moeinf.engine.speed.rates import STORE_ALONE, Disks, Kind, Products, Reading, nearest
from moeinf.engine.speed.rates_file import file_of, load, save
from tests.support.rates import PLAIN


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    assert load(save(PLAIN, tmp_path / "home")) == PLAIN
    slow, fast = Reading(4e9, 1e9), Reading(4e9, 3e9)
    more = PLAIN.with_reading({Kind("q4_k", 512): slow, Kind("q4_k", 256): fast}).with_reading({Kind("f32", 7): fast})
    assert load(save(more, tmp_path / "home")) == more
    two_disks = replace(PLAIN, also={"/mnt/second": {1 << 20: 3e9}})
    assert load(save(two_disks, tmp_path / "home")) == two_disks
    assert more.reading_of(Kind("q4_k", 256)) == fast and more.reading_of(Kind("f32", 8)) is None
    assert (slow.share, fast.share) == (0.25, 0.75)


def test_rates_of_other_threads_are_kept_beside(tmp_path: Path) -> None:
    other = replace(PLAIN, conditions=replace(PLAIN.conditions, threads=2))
    paths = [save(PLAIN, tmp_path), save(other, tmp_path)]
    assert [load(path) for path in paths] == [PLAIN, other]
    assert paths == [file_of(tmp_path, "generic", threads) for threads in (1, 2)]


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
        {"also": []},
        {"also": {"/mnt/second": {"1048576": 0}}},
        {"surprise": 1},
        {"threads": True},
    ],
)
def test_a_file_that_is_not_sound_counts_as_none(change: dict[str, object], tmp_path: Path) -> None:
    path = save(PLAIN, tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert load(path) is None


def test_rates_that_an_older_version_kept_are_read(tmp_path: Path) -> None:
    path = save(PLAIN, tmp_path)
    kept = json.loads(path.read_text())
    del kept["also"]
    path.write_text(json.dumps(kept))
    assert load(path) == PLAIN


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


@pytest.mark.parametrize(
    ("disks", "expected"),
    [
        (STORE_ALONE, [1e9, 2e9]),
        (Disks(("/mnt/a",)), [4e9, 4e9]),
        (Disks(("/mnt/a", "/mnt/b")), [5e9, 5e9]),
        (Disks(("/mnt/a",), 0.25), [4e9, 2e9 / 0.75]),
        (Disks(("/mnt/a",), 0.5), [2e9, 4e9]),
    ],
)
def test_disks_that_read_side_by_side_are_as_fast_as_all_of_them(disks: Disks, expected: list[float]) -> None:
    """One that has a part of every expert is waited for, however fast the other is."""
    also = {"/mnt/a": {1 << 20: 3e9, 4 << 20: 2e9}, "/mnt/b": {1 << 20: 1e9, 4 << 20: 1e9}}
    both = replace(PLAIN, also=also).with_disks(disks)
    assert [both.disk_rate(size) for size in PLAIN.disk] == pytest.approx(expected)


def test_reads_are_as_fast_as_those_of_the_nearest_size() -> None:
    assert [PLAIN.disk_rate(size) for size in (1, 1 << 20, 3 << 20, 1 << 30)] == [1e9, 1e9, 2e9, 2e9]
