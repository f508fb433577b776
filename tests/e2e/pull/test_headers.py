"""What headers say of a model is what a pull then stores of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from moeinf.config.pull_options import PullOptions
from moeinf.engine.memory.footprint import ANY_TEXT_BYTES
from moeinf.engine.stored.outline import Outline, outline_of, outline_of_headers
from moeinf.pull.pull import pull, read_headers
from moeinf.store.library import StoredModel
from tests.support.checkpoints import random_tensors, write_checkpoint
from tests.support.converter.record import checkpoint
from tests.support.gguf_files import write_gguf
from tests.support.hub_server import REPO, Hub, point_client_at, serving
from tests.support.mixed_gguf import without_vocabulary


def of_headers(source: str, home: Path, quant: str | None = None) -> tuple[Outline, int]:
    headers = read_headers(source, PullOptions(quant=quant), home=home)
    return outline_of_headers(headers.config, headers.generation, headers.manifest, headers.dense), headers.store_bytes


def assert_alike(told: tuple[Outline, int], stored: StoredModel) -> None:
    outline, num_bytes = told
    found = outline_of(stored)
    text_bytes = found.footprint.text_bytes  # of a tokenizer, which headers do not tell of
    assert outline.footprint.text_bytes == ANY_TEXT_BYTES
    assert replace(outline.footprint, text_bytes=text_bytes) == found.footprint
    assert replace(outline.device_footprint, text_bytes=text_bytes) == found.device_footprint
    assert outline.held.kinds == found.held.kinds
    assert num_bytes <= stored.size_bytes < num_bytes + (1 << 20)  # and the small files


@pytest.mark.parametrize("quant", [None, "q8_0", "q4_k"])
def test_of_the_embedded_model(quant: str | None, tmp_path: Path) -> None:
    told = of_headers("demo", tmp_path, quant)
    assert not list(tmp_path.iterdir())
    assert_alike(told, pull("demo", PullOptions(quant=quant), home=tmp_path))


def test_of_a_folder_whose_weights_are_not_read(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", random_tensors())
    told = of_headers(str(folder), tmp_path / "home")
    assert_alike(told, pull(str(folder), home=tmp_path / "home"))


def test_a_name_that_is_taken_bars_no_look(tmp_path: Path) -> None:
    one, other = (write_checkpoint(tmp_path / where / "checkpoint", random_tensors()) for where in ("one", "other"))
    pull(str(one), home=tmp_path / "home")
    assert of_headers(str(other), tmp_path / "home")[1] > 0


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    without_vocabulary(monkeypatch)
    config, tensors = checkpoint("qwen3_moe")
    (tmp_path / "repository").mkdir()
    write_gguf(tmp_path / "repository" / "Tiny-MoE-Q8_0.gguf", config, tensors, kinds=lambda name: "Q8_0")
    return tmp_path / "repository" / "Tiny-MoE-Q8_0.gguf"


def test_of_a_gguf_file(file: Path, tmp_path: Path) -> None:
    told = of_headers(str(file), tmp_path / "home")
    assert not (tmp_path / "home").exists()
    assert_alike(told, pull(str(file), home=tmp_path / "home"))


@pytest.fixture
def server(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(file.parent) as served:
        point_client_at(served.endpoint, tmp_path, monkeypatch)
        yield served


def test_of_a_gguf_file_of_the_hub(server: Hub, tmp_path: Path) -> None:
    told = of_headers(f"{REPO}:Q8_0", tmp_path / "home")
    assert not (tmp_path / "home" / "models").exists()
    assert_alike(told, pull(f"{REPO}:Q8_0", home=tmp_path / "home"))


@pytest.mark.parametrize("quant", [None, "q8_0"])
def test_of_a_checkpoint_of_the_hub_of_which_headers_alone_are_read(
    quant: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", random_tensors())
    with serving(folder) as hub:
        point_client_at(hub.endpoint, tmp_path, monkeypatch)
        told = of_headers(REPO, tmp_path / "home", quant)
        assert not (tmp_path / "home").exists()
        assert hub.sent_bytes(".safetensors") < sum(path.stat().st_size for path in folder.glob("*.safetensors")) / 4
        assert_alike(told, pull(REPO, PullOptions(quant=quant), home=tmp_path / "home"))
