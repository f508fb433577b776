"""The embedded model as a GGUF file, from the command line: told, answered and forgotten as any other."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from moeinf import cli
from moeinf.store.naming.catalogue import DATA
from tests.support.gguf_files import tokenizer_fields, write_gguf

GREEDY = ("-n", "16", "--temperature", "0", "-t", "1", "--quiet")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In f32, so that the router is what it is in the store."""
    folder = DATA / "demo"
    config = json.loads((folder / "config.json").read_text())
    metadata: dict[str, Any] = tokenizer_fields(json.loads((folder / "tokenizer.json").read_text()), eos=0, bos=0)
    tensors = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
    path = tmp_path_factory.mktemp("files") / "Demo-F32.gguf"
    return write_gguf(path, config, tensors, kinds=lambda name: "F32", metadata=metadata)[0]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setenv("MOEINF_HOME", str(tmp_path / "home"))

    def command(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        code = cli.run_command(list(words))
        out, err = capfd.readouterr()
        return code, out, err

    return command


def test_a_file_is_run_shown_listed_verified_and_forgotten(run: Any, file: Path) -> None:
    code, answer, said = run("run", str(file), "Once upon a time", *GREEDY)
    assert code == 0 and len(answer) > 10
    assert "a GGUF file has no checksums; `moeinf verify demo-f32:latest` adds" in said
    code, same, _ = run("run", "demo-f32", "Once upon a time", "--expert-cache", "34%", *GREEDY)
    assert (code, same) == (0, answer)
    code, listed, _ = run("list", "--json")
    [model] = json.loads(listed)
    assert model["name"] == "demo-f32:latest" and model["format"] == "f32"
    assert model["size_bytes"] > file.stat().st_size
    for name in (str(file), "demo-f32"):
        code, shown, _ = run("show", name, "--json")
        assert code == 0 and json.loads(shown)["source"] == {"kind": "file", "path": str(file)}
    code, shown, _ = run("show", "demo-f32", "--verbose")
    assert code == 0 and "gate    f32  [64, 128]" in " ".join(shown.split("\n")) and "qwen3_moe" in shown
    code, verified, said = run("verify", "demo-f32")
    assert code == 0 and "192 experts" in verified and "added checksums.bin" in said
    code, again, said = run("run", "demo-f32", "Once upon a time", "--verify-reads", *GREEDY)
    assert (code, again) == (0, answer) and "checksums" not in said
    code, out, _ = run("rm", "demo-f32")
    assert code == 0 and "deleted 'demo-f32'" in out and file.is_file()
    code, _, said = run("run", "demo-f32", "Once", *GREEDY)
    assert code == 1 and "not found" in said


def test_what_it_says_is_what_the_store_of_the_same_weights_says(run: Any, file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((DATA / "demo" / name).read_bytes())
    tensors = load_file(DATA / "demo" / "model.safetensors")
    save_file({name: tensor.float() for name, tensor in tensors.items()}, folder / "model.safetensors")
    answers = [run("run", str(source), "There was once", *GREEDY)[1] for source in (folder, file)]
    assert answers[0] == answers[1] != ""


def test_pull_takes_a_file_and_tells_what_it_would_do(run: Any, file: Path) -> None:
    code, planned, _ = run("pull", str(file), "--dry-run")
    assert code == 0 and "demo-f32" in planned
    assert run("pull", str(file), "--name", "mine", "--quiet")[0] == 0
    code, answer, said = run("run", "mine", "Once upon a time", *GREEDY)
    assert code == 0 and "checksums" not in said and answer
    code, _, said = run("run", str(file), "--quant", "q4_k", "Once", *GREEDY)
    assert code == 2 and "a GGUF file is used as it is" in said
    code, _, said = run("pull", str(file.with_name("gone.gguf")))
    assert code == 1 and "gone.gguf: No such file" in said


def test_bench_times_a_file(run: Any, file: Path) -> None:
    code, table, said = run(
        "bench", str(file), "-p", "8", "-n", "4", "-r", "1", "--output", "json", "-t", "1", "--quiet"
    )
    assert code == 0, said
    assert json.loads(table)[0]["model_type"] == "qwen3_moe f32"


@pytest.mark.parametrize("path", ["./no.gguf", "no.gguf", "folder/no.gguf", "deep/er/no.gguf", "~/no.gguf", "NO.GGUF"])
@pytest.mark.parametrize("words", [("run",), ("pull",), ("show",), ("verify",), ("bench",), ("fit",)])
def test_a_file_that_is_not_there_is_told_at_once(
    words: tuple[str, ...], path: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No name that ends like a file is asked of the Hub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    code, _, said = run(*words, path, *["hi"][: words == ("run",)])
    assert code == 1 and "No such file" in said and path.removeprefix("./").removeprefix("~/") in said
    assert "127.0.0.1" not in said and "meanwhile" not in said


def test_a_modelfile_of_a_file_that_is_not_there_is_told_so(run: Any, tmp_path: Path) -> None:
    for path in ("./no.gguf", "folder/no.gguf", str(tmp_path / "no.gguf")):
        (tmp_path / "Modelfile").write_text(f"FROM {path}\n")
        code, _, said = run("create", "mine", "-f", str(tmp_path / "Modelfile"))
        assert code == 1 and "No such file" in said, said
