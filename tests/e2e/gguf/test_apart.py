"""Files of before April 2024, in which each expert has tensors of its own, give what files of today give."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import gguf
import pytest
from safetensors.torch import load_file

from moeinf import cli
from moeinf.store.naming.catalogue import DATA
from tests.support.gguf_files import tokenizer_fields, write_gguf

GREEDY = ("Once upon a time", "-n", "12", "--temperature", "0", "--quiet")
EXPERTS = re.compile(r"(blk\.\d+\.ffn_\w+)_exps\.weight")


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, path = DATA / "demo", tmp_path_factory.mktemp("merged") / "Demo.gguf"
    config = json.loads((folder / "config.json").read_text())
    metadata: dict[str, Any] = tokenizer_fields(json.loads((folder / "tokenizer.json").read_text()), eos=0, bos=0)
    tensors = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
    write_gguf(path, config, tensors, kinds=lambda name: "Q8_0", metadata=metadata)
    return path


def apart(merged: Path, path: Path, *, sprinkled: bool = False) -> Path:
    """The same with a tensor for each expert. sprinkled: a tensor of another layer lies between two of them."""
    reader = gguf.GGUFReader(merged)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type)
    whole = [tensor for tensor in reader.tensors if not EXPERTS.fullmatch(tensor.name)]
    layers: dict[str, list[Any]] = {}
    for tensor in reader.tensors:
        if found := EXPERTS.fullmatch(tensor.name):
            layers.setdefault(found[1].rpartition(".")[0], []).append((found[1], tensor))
    for parts in layers.values():
        for expert in range(len(parts[0][1].data)):
            for stem, tensor in parts:
                writer.add_tensor(f"{stem}.{expert}.weight", tensor.data[expert], raw_dtype=tensor.tensor_type)
            if sprinkled and expert == 2:
                between = whole.pop()
                writer.add_tensor(between.name, between.data, raw_dtype=between.tensor_type)
    for tensor in whole:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setenv("MOEINF_HOME", str(tmp_path / "home"))

    def command(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        code = cli.run_command(list(words))
        return (code, *capfd.readouterr())

    return command


def test_experts_apart_answer_as_experts_in_one_tensor(run: Any, merged: Path, tmp_path: Path) -> None:
    old = apart(merged, tmp_path / "Old.gguf")
    code, answer, _ = run("run", str(merged), *GREEDY)
    assert code == 0 and len(answer) > 20
    assert run("run", str(old), *GREEDY)[:2] == (0, answer)
    assert run("run", str(old), *GREEDY, "--expert-cache", "10%")[:2] == (0, answer)
    assert run("verify", "old")[0] == 0
    assert run("pull", str(old), "--repack", "--name", "copied")[0] == 0
    assert run("run", "copied", *GREEDY)[:2] == (0, answer)


def test_experts_that_lie_in_unequal_steps_are_refused(run: Any, merged: Path, tmp_path: Path) -> None:
    code, _, error = run("run", str(apart(merged, tmp_path / "Old.gguf", sprinkled=True)), *GREEDY)
    assert code == 1 and "do not lie in equal steps; take a newer file" in error and error.count("\n") == 1
