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
from moeinf.engine.completion import Completion
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.errors import StoreError, UsageError
from moeinf.pull.pull import ensure, pull
from moeinf.store.library import Library, StoredModel
from moeinf.store.manifest import VERSION, model_id
from moeinf.store.verify import verify
from moeinf.traces.trace import load_trace
from moeinf.types import Float32Array

KEPT = Path(__file__).parents[2] / "support" / "older"
STORES = sorted(path.name for path in KEPT.glob("2026-*.tar.xz"))
ELSEWHERE = "g:latest"  # whose weights lie in another file
BY_HAND = ("2026-11-23-7c8be8e2.tar.xz", "2026-11-25-420a8162.tar.xz")  # what was learned, and the traces


def having(folder: str) -> list[str]:
    """The stores that have something there."""
    found = []
    for name in STORES:
        with tarfile.open(KEPT / name) as archive:
            found += [name] if any(each.startswith(f"{folder}/") for each in archive.getnames()) else []
    return found


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
    found = {model.name: model for model in library.list() if model.name != ELSEWHERE}
    assert found and found.keys() <= {"c:latest", "m:latest", "mq8_0:q8_0"}
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
        assert "m:latest" not in found or (found["m:latest"].path / shard).read_bytes() == data


@pytest.mark.parametrize("home", having("names/g"), indirect=True)
def test_a_gguf_file_with_an_adapter_answers_as_one_that_is_merged_today(home: Path, tmp_path: Path) -> None:
    """The manifest is told where the file lies now."""
    source, before = unpacked("gguf.tar.xz", tmp_path / "gguf"), Library(home).find("g").path
    text = (before / "manifest.json").read_text().replace('"/tmp/older/gguf"', json.dumps(str(source)))
    now = before.with_name(model_id(text.encode()))
    before.rename(now)
    (now / "manifest.json").write_text(text)
    (home / "names" / "g" / "latest").write_text(f"{now.name} @\n")
    stored = Library(home).find("g")
    assert stored.manifest.in_place is not None and stored.manifest.in_place.merged and verify(stored) == []
    merged = ensure(str(source / "model.gguf"), PullOptions(lora=str(source / "adapter")), home=tmp_path / "today")
    np.testing.assert_array_equal(logits(stored), logits(merged))


@pytest.mark.parametrize("home", having("names/c"), indirect=True)
def test_presets_and_what_was_learned_are_read(home: Path) -> None:
    library = Library(home)
    assert {"c:latest", "m:latest", "mq8_0:q8_0"} <= {model.name for model in library.list()}
    preset = json.loads(library.find("c").preset_text)
    assert preset["system"] == "Be\nbrief." and sorted(preset["options"]) == [["stop", "b"], ["temperature", "0.5"]]
    said = list[str]()
    collection = ActivationFile(library.find("m"), said.append).collection
    assert not said and len(collection)


@pytest.mark.parametrize("home", BY_HAND, indirect=True)
def test_numbers_that_were_learned_are_as_they_were(home: Path) -> None:
    collection = ActivationFile(Library(home).find("m"), print).collection
    assert collection.counts(2).tolist() == [[3, 1, 0, 2], [0, 4, 2, 1]]


@pytest.mark.parametrize("home", having("traces"), indirect=True)
def test_traces_are_read_and_go_on(home: Path, request: pytest.FixtureRequest) -> None:
    trace = load_trace(home / "traces")
    assert trace.model == "m:latest" and trace.num_tokens
    if request.node.callspec.params["home"] in BY_HAND:
        assert (trace.num_requests, trace.num_tokens) == (2, 8) and trace.experts[5].tolist() == [[3, 2], [2, 0]]
    with Model(Library(home).find("m"), RuntimeConfig.of(threads=1, trace=str(home / "traces"))) as model:
        model.generate("a b", model.params(temperature=0.0, num_predict=2, stop=()))
    assert load_trace(home / "traces").num_requests == trace.num_requests + 1


@pytest.mark.parametrize("home", having("prefixes"), indirect=True)
def test_kept_prompts_change_no_answer(home: Path, today: dict[str, StoredModel]) -> None:
    """Each was kept of these tokens by another build, which may round otherwise: they are not taken."""
    prompt = " ".join("abcdefgh"[n % 8] for n in range(90))
    said = list[str]()

    def answered(stored: StoredModel, prefix_disk: str) -> Completion:
        config = RuntimeConfig.of(threads=1, prefix_disk=prefix_disk)
        with Model(stored, config, Reporting(said.append, said.append)) as model:
            return model.generate(prompt, model.params(temperature=0.0, num_predict=4, stop=()))

    found = answered(Library(home).find("m"), "20MB")
    assert found.text == answered(today["m"], "0").text
    assert not found.stats.cached_tokens and not any("prefix" in line for line in said)


@pytest.mark.parametrize("home", having("names/m"), indirect=True)
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
    assert {each.name for each in library.list()} - {"m:latest", ELSEWHERE} == {"c:latest", "mq8_0:q8_0"}
    library.prune()
    assert (later / "dense.safetensors").exists()
