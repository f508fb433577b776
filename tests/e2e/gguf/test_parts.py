"""A part of a split that was swapped for one of another model, of the same size and header, is noticed."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from moeinf import cli
from moeinf.store.naming.catalogue import DATA
from tests.support.gguf_files import tokenizer_fields, write_gguf

GREEDY = ("hi", "-n", "4", "--temperature", "0", "-t", "1", "--quiet")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[Path]]:
    """The parts of two models that differ in nothing but their weights."""
    folder = DATA / "demo"
    config = json.loads((folder / "config.json").read_text())
    metadata: dict[str, Any] = tokenizer_fields(json.loads((folder / "tokenizer.json").read_text()), eos=0, bos=0)
    tensors = load_file(folder / "model.safetensors")
    found = []
    for factor in (1.0, 1.25):
        path = tmp_path_factory.mktemp("parts") / "Demo.gguf"
        weights = {name: tensor.float() * factor for name, tensor in tensors.items()}
        found.append(write_gguf(path, config, weights, kinds=lambda name: "F32", metadata=metadata, tensors_a_part=20))
    ours, others = found
    assert len(ours) > 2 and [p.stat().st_size for p in ours] == [p.stat().st_size for p in others]
    return ours, others


@pytest.fixture
def parts(models: tuple[list[Path], list[Path]], tmp_path: Path) -> list[Path]:
    """A copy of the first model's."""
    (tmp_path / "files").mkdir()
    return [Path(shutil.copy(part, tmp_path / "files")) for part in models[0]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setenv("MOEINF_HOME", str(tmp_path / "home"))

    def command(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        code = cli.run_command(list(words))
        out, err = capfd.readouterr()
        return code, out + err

    return command


@pytest.mark.parametrize("made", ["pull", "run"])
@pytest.mark.parametrize("number", [1, -1])
def test_a_part_of_another_model_is_refused_whatever_the_command(
    made: str, number: int, run: Any, parts: list[Path], models: tuple[list[Path], list[Path]]
) -> None:
    first = (str(parts[0]), *GREEDY) if made == "run" else (str(parts[0]),)
    assert run(made, *first)[0] == 0
    shutil.copystat(parts[number], models[1][number])  # so that times tell nothing either
    shutil.copy2(models[1][number], parts[number])
    code, said = run("pull", str(parts[0]))
    assert code == 1 and f"{parts[number].name} has other weights now" in said and "put it back" in said
    known = "does not match|do not match|is damaged" if made == "pull" else "has other weights now"
    for words in (("run", "demo", *GREEDY), ("run", str(parts[0]), *GREEDY), ("verify", "demo")):
        code, said = run(*words)
        assert code == 1 and parts[number].name in said and re.search(known, said), words
    shutil.copy2(models[0][number], parts[number])
    assert run("run", str(parts[0]), *GREEDY)[0] == 0


def test_all_parts_of_another_model_are_that_model(
    run: Any, parts: list[Path], models: tuple[list[Path], list[Path]]
) -> None:
    _, before = run("run", str(parts[0]), *GREEDY)
    for part, other in zip(parts, models[1], strict=True):
        shutil.copy2(other, part)
    code, _ = run("run", str(parts[0]), *GREEDY)
    assert code == 0 and before
    assert [each["name"] for each in json.loads(run("list", "--json")[1])] == ["demo:latest"]
