"""The lab: its experiments run on any trace, and the pages are what its script makes of the recorded results."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeinf.traces.trace import Trace, dumps
from moeinf.types import MoeShape

ROOT = Path(__file__).parents[3]
LAB = ROOT / "benchmarks" / "lab"
NAME = "deepseek-v2-lite-chat"  # one that record.py knows


def module(name: str) -> Any:
    spec = util.spec_from_file_location(name, LAB / f"{name}.py")
    assert spec is not None and spec.loader is not None
    loaded = util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Rows of every experiment on requests of two kinds by turns, each of which uses three experts of a layer."""
    folder = tmp_path_factory.mktemp("lab")
    rng, shape, requests, length = np.random.default_rng(5), MoeShape(3, 16, 2), 20, 8
    kind = np.arange(requests)[:, None, None, None] % 2 * 8
    experts = np.argsort(rng.random((requests, length, shape.num_layers, 3)), axis=3)[..., :2] + kind
    offsets = np.arange(requests + 1) * length
    trace = Trace(NAME, shape, experts.reshape(-1, shape.num_layers, 2), offsets)
    (folder / NAME).mkdir()
    (folder / NAME / "routing.npz").write_bytes(dumps(trace))
    command = [sys.executable, str(LAB / "record.py"), str(folder), str(folder / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))["results"][NAME]
        for path in (folder / "out").glob("*.json")
    }


def test_every_experiment_has_a_table_and_gives_rows(recorded: dict[str, list[dict[str, Any]]]) -> None:
    assert set(recorded) == set(module("pages").TABLES)
    assert all(recorded.values())


def test_the_bound_is_never_passed(recorded: dict[str, list[dict[str, Any]]]) -> None:
    rows = recorded["hit-rates"]
    bound = {row["share"]: row["hits"] for row in rows if row["policy"] == "belady"}
    assert len(bound) == 5 and max(bound.values()) > 0
    assert all(row["hits"] <= bound[row["share"]] for row in rows)


def test_two_kinds_of_requests_are_told_apart(recorded: dict[str, list[dict[str, Any]]]) -> None:
    """Requests of their own kind are matched, as soon as some are known; after a change LRU finds the other kind."""
    recall = {row["capacity"]: row["recall"] for row in recorded["capacity"]}
    assert recall[120] == recall[1000] > 0.5
    lru = next(row for row in recorded["recovery"] if row["policy"] == "lru")
    assert lru["behind"][0] > 0 and abs(np.mean(lru["behind"][1:])) < 1e-9, "the first request finds the other kind"


def test_the_pages_are_what_the_script_makes_of_the_results() -> None:
    pages = module("pages")
    for page in pages.PAGES:
        text = (ROOT / "docs" / "lab" / page).read_text(encoding="utf-8")
        assert pages.with_tables(text, ROOT / "docs" / "lab") == text
    assert set(pages.MARKED.findall((ROOT / "docs" / "lab" / "paper.md").read_text(encoding="utf-8"))) != set()
