"""Every script in examples/ runs as its first lines say, and says what it promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from moeinf.store.library import Library, StoredModel

EXAMPLES = Path(__file__).parents[3] / "examples"


def run(home: Path, script: str, *words: str, lines: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / script), *words],
        env=os.environ | {"MOEINF_HOME": str(home)},
        input=lines,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def home(demo: StoredModel) -> Path:
    return demo.path.parents[1]


def test_a_conversation_goes_on_until_an_empty_line(home: Path) -> None:
    done = run(home, "chat.py", "demo", lines="Once upon a time\nThe king said\n\nnever asked\n")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("demo:latest ·") and len(done.stdout.split()) > 20


def test_every_line_is_answered_by_one_object(home: Path) -> None:
    done = run(home, "batch.py", "demo", lines="Once upon a time\n\nThe king said\n")
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["prompt"] for answer in answers] == ["Once upon a time", "The king said"]
    assert all(answer["response"] and 0 <= answer["hit_rate"] <= 1 for answer in answers)


def test_a_larger_cache_hits_more_often(home: Path) -> None:
    done = run(home, "hit_rate.py", "demo", "--cache", "20%", "--cache", "70%", "--policy", "lru")
    assert done.returncode == 0, done.stderr
    small, large = ([cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()[2:])
    assert (small[0], large[0]) == ("20%", "70%") and float(small[2]) < float(large[2])
    assert small[4] == large[4], "the answer does not depend on the cache"


def test_a_checkpoint_becomes_a_verified_model(tmp_path: Path, demo: StoredModel) -> None:
    from moeinf.store.naming.catalogue import DATA

    done = run(tmp_path, "convert.py", str(DATA / "demo"), "--quant", "q8_0", "--name", "mine:q8_0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("mine:q8_0: ") and len(done.stdout.splitlines()) >= 2
    assert [model.name for model in Library(tmp_path).list()] == ["mine:q8_0"]


def test_a_folder_that_is_no_checkpoint_is_refused_in_one_line(tmp_path: Path) -> None:
    done = run(tmp_path / "home", "convert.py", str(tmp_path))
    assert done.returncode == 1 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_every_script_is_described(home: Path) -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"[{path.name}]({path.name})" in page for path in EXAMPLES.glob("*.py"))
