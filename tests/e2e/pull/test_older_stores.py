"""Stores that earlier commits have written answer as one that is written today (tests/support/older/README.md)."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.activation_file import ActivationFile
from moeinf.engine.model import Model
from moeinf.errors import StoreError, UsageError
from moeinf.pull.pull import pull
from moeinf.store.library import Library, StoredModel
from moeinf.store.manifest import VERSION, model_id
from moeinf.store.verify import verify
from moeinf.traces.trace import load_trace
from moeinf.types import Float32Array

KEPT = Path(__file__).parents[2] / "support" / "older"
STORES = sorted(path.name for path in KEPT.glob("2026-*.tar.xz"))
LATER = ["c:latest", "m:latest", "mq8_0:q8_0"]


def unpacked(name: str, folder: Path) -> Path:
    with tarfile.open(KEPT / name) as archive:
        for each in archive.getmembers():
            assert each.isdir() or each.isfile()
        archive.extractall(folder)
    return folder


@pytest.fixture
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return unpacked(request.param, tmp_path / "home")


@pytest.fixture(scope="module")
def today(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StoredModel]:
    """The same checkpoint, stored by this version."""
    folder = tmp_path_factory.mktemp("today")
    checkpoint = unpacked("checkpoint.tar.xz", folder / "checkpoint")
    options = {"m": PullOptions(name="m"), "mq8_0": PullOptions(name="mq8_0", quant="q8_0")}
    return {name: pull(str(checkpoint), each, home=folder / "home") for name, each in options.items()}


def logits(stored: StoredModel) -> Float32Array:
    """Of eight tokens, and of one more behind them."""
    with Model(stored, RuntimeConfig.of(threads=1, expert_cache="50%")) as model:
        runner = model.runner
        rows = [runner.network.forward(list(range(3, 83, 10)), runner.cache, of_tokens=8, last_only=False)]
        return np.concatenate([*rows, runner.network.forward([90], runner.cache)])


@pytest.mark.parametrize("home", STORES, indirect=True)
def test_each_model_answers_as_one_that_is_stored_today(home: Path, today: dict[str, StoredModel]) -> None:
    library = Library(home)
    assert library.faults() == []
    found = {model.name: model for model in library.list()}
    assert sorted(found) in (["m:latest"], LATER)
    for name, model in found.items():
        assert verify(model) == []
        if name == "mq8_0:q8_0":  # its embedding was not quantised then
            found_here, wanted = logits(model), logits(today["mq8_0"])
            assert np.abs(found_here - wanted).max() < 0.05 * np.ptp(wanted)
        else:
            np.testing.assert_array_equal(logits(model), logits(today["m"]))
        assert verify(model) == []  # whatever a run has added
    stored = {shard: (today["m"].path / shard).read_bytes() for shard in ("experts-00000.bin", "experts-00001.bin")}
    for shard, data in stored.items():
        assert (found["m:latest"].path / shard).read_bytes() == data


@pytest.mark.parametrize("home", STORES[1:], indirect=True)
def test_presets_and_what_was_learned_are_read(home: Path) -> None:
    library = Library(home)
    assert sorted(model.name for model in library.list()) == LATER
    preset = json.loads(library.find("c").preset_text)
    assert preset == {"system": "Be\nbrief.", "options": [["temperature", "0.5"], ["stop", "b"]]}
    said = list[str]()
    collection = ActivationFile(library.find("m"), said.append).collection
    assert (said, len(collection)) == ([], 3)
    assert collection.counts(2).tolist() == [[3, 1, 0, 2], [0, 4, 2, 1]]


@pytest.mark.parametrize("home", STORES[-1:], indirect=True)
def test_traces_are_read_and_go_on(home: Path) -> None:
    trace = load_trace(home / "traces")
    assert (trace.num_requests, trace.num_tokens, trace.model) == (2, 8, "m:latest")
    assert trace.experts[5].tolist() == [[3, 2], [2, 0]]
    with Model(Library(home).find("m"), RuntimeConfig.of(threads=1, trace=str(home / "traces"))) as model:
        model.generate("a b", model.params(temperature=0.0, num_predict=2, stop=()))
    assert load_trace(home / "traces").num_requests == 3


@pytest.mark.parametrize("home", STORES, indirect=True)
def test_a_pull_of_another_folder_takes_no_name_away(home: Path, tmp_path: Path) -> None:
    checkpoint = unpacked("checkpoint.tar.xz", tmp_path / "moved")
    with pytest.raises(UsageError, match=r"is the name of a model of .*, which is kept"):  # whatever is in it
        pull(str(checkpoint), PullOptions(name="m"), home=home)
    pulled = pull(str(checkpoint), PullOptions(name="n"), home=home)
    assert verify(pulled) == []
    np.testing.assert_array_equal(logits(pulled), logits(Library(home).find("m")))


def test_a_store_of_a_later_version_is_named_and_left_alone(tmp_path: Path) -> None:
    home = unpacked(STORES[-1], tmp_path / "home")
    library = Library(home)
    model = library.find("m")
    text = (model.path / "manifest.json").read_text().replace('"version": 2', f'"version": {VERSION + 1}')
    later = model.path.with_name(model_id(text.encode()))
    shutil.copytree(model.path, later)
    (later / "manifest.json").write_text(text)
    (home / "names" / "m" / "latest").write_text(f"{later.name} @\n")
    with pytest.raises(StoreError, match=r"made by a newer moeinf.*upgrade moeinf"):
        _ = library.find("m").manifest
    assert sorted(each.name for each in library.list() if each.name != "m:latest") == ["c:latest", "mq8_0:q8_0"]
    library.prune()
    assert (later / "dense.safetensors").exists()
