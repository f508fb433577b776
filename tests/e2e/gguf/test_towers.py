"""GGUF models that see by an mmproj file: as their checkpoints do, wherever the file lies and however it is found."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeinf import cli
from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.model import Model
from moeinf.engine.vision.encoder import VisionEncoder, required
from moeinf.errors import CheckpointError, StoreError, UnsupportedModelError, UsageError
from moeinf.pull.events import SilentProgress
from moeinf.pull.pull import ensure, plan_pull, pull
from moeinf.store.library import Library, StoredModel
from moeinf.store.verify import verify
from moeinf.types import Float32Array
from tests.support.hub_server import REPO, point_client_at, serving
from tests.support.seeing_models import FAMILIES, asking, png, write_seeing_gguf

QUESTION = "What is this?"


class Notes(SilentProgress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def seen(stored: StoredModel, pictures: int = 2, **options: Any) -> tuple[list[int], list[Float32Array]]:
    """The answer to pictures, and what the tower makes of each."""
    with Model(stored, RuntimeConfig.of(**{"device": "cpu", "context": 512, "picture_tokens": 30} | options)) as model:
        messages = asking(QUESTION, *(png(seed, 60 + 20 * seed) for seed in range(1, pictures + 1)))
        answer = model.generate(messages, model.params(temperature=0.0, num_predict=10))
        encoder: VisionEncoder = required(model.generator.prompts.vision_encoder)
        return answer.token_ids, list(encoder._rows.values())


def blind(stored: StoredModel, why: str) -> None:
    with Model(stored, RuntimeConfig.of(device="cpu", context=256)) as model, pytest.raises(UsageError, match=why):
        model.generate(asking(QUESTION, png(1)), model.params(num_predict=2))


@pytest.mark.parametrize(
    "family",
    [*FAMILIES, "qwen3_vl_moe", "glm4v_moe", "glm5v", "kimi_k25", "mimo_v2_flash", "minimax_m3_vl", "step3p7 in files"],
)
def test_it_sees_what_its_checkpoint_sees(family: str, tmp_path: Path) -> None:
    model, mmproj = write_seeing_gguf(tmp_path, family)
    before = mmproj.read_bytes()
    wanted, rows = seen(pull(str(tmp_path / "checkpoint"), home=tmp_path / "home"))
    notes = Notes()
    stored = ensure(str(model), home=tmp_path / "home", progress=notes)
    assert notes.notes == ["pictures are seen by mmproj-F32.gguf, which lies beside the model"]
    found, others = seen(stored)
    assert found == wanted and len(rows) == len(others) == 2
    assert all(map(np.array_equal, others, rows))
    assert ensure(str(model), home=tmp_path / "home").id == stored.id
    assert seen(stored, expert_cache="40%", prefill_chunk=7, reader="pure")[0] == wanted
    assert not (stored.path / "vision.safetensors").exists() and mmproj.read_bytes() == before
    own = pull(str(model), PullOptions(repack=True), home=tmp_path / "home")
    ids, kept = seen(own)
    assert ids == wanted and all(map(np.array_equal, kept, others)) and verify(own) == []


@pytest.mark.parametrize("kind", ["Q8_0", "F16"])
def test_it_sees_by_a_tower_of_another_type(kind: str, tmp_path: Path) -> None:
    """Q8_0 where rows have whole blocks: of the merger."""
    model, _ = write_seeing_gguf(tmp_path, "qwen3_5_moe", kinds=lambda name: kind)
    _, rows = seen(pull(str(tmp_path / "checkpoint"), home=tmp_path / "home"))
    stored = ensure(str(model), home=tmp_path / "home")
    formats = {place.sources[0].format for place in stored.manifest.in_place.vision}  # type: ignore[union-attr]
    assert kind.lower() in formats
    own = pull(str(model), PullOptions(repack=True), home=tmp_path / "home")
    for each in (stored, own):
        for ours, theirs in zip(seen(each)[1], rows, strict=True):
            assert np.linalg.norm(ours - theirs) < 0.03 * np.linalg.norm(theirs)


def test_a_file_is_named_moved_and_left_out(tmp_path: Path) -> None:
    model, beside = write_seeing_gguf(tmp_path, "gemma4")
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere" / "tower.gguf"
    elsewhere.parent.mkdir()
    seeing = ensure(str(model), home=home)
    assert seeing.manifest.vision_bytes and seeing.size_bytes > model.stat().st_size + beside.stat().st_size
    beside.rename(elsewhere)
    with pytest.raises(StoreError, match=r"mmproj-F32\.gguf: No such file"):
        Model(seeing, RuntimeConfig.of(device="cpu", context=64))
    text = ensure(str(model), home=home)
    assert text.id != seeing.id and text.name == seeing.name
    blind(text, r"stored without a vision tower.*`moeinf pull .*/model\.gguf --mmproj FILE`")
    named = pull(str(model), PullOptions(mmproj=str(elsewhere)), home=home)
    assert named.name == text.name and seen(named)[0] and verify(named) == []
    assert [file.folder for file in named.manifest.in_place.files] == ["", str(elsewhere.parent)]  # type: ignore[union-attr]
    assert ensure(str(model), home=home).id == named.id == pull("model", home=home).id
    assert not pull(str(model), PullOptions(mmproj="none"), home=home).manifest.vision_bytes
    plan = plan_pull(str(model), PullOptions(mmproj=str(elsewhere)), home=home)
    assert [file.file for file in plan.files] == ["model.gguf", "tower.gguf"]
    with pytest.raises(CheckpointError, match=r"gone\.gguf: No such file"):
        pull(str(model), PullOptions(mmproj=str(tmp_path / "gone.gguf")), home=home)
    with pytest.raises(UnsupportedModelError, match="is no mmproj file but a model of 'gemma4'"):
        pull(str(model), PullOptions(mmproj=str(model)), home=home)
    with pytest.raises(UnsupportedModelError, match="is no model but of type 'mmproj'"):
        ensure(str(elsewhere), home=home)
    with pytest.raises(UsageError, match="--mmproj is for GGUF files; 'demo' is a checkpoint"):
        pull("demo", PullOptions(mmproj="none"), home=home)


def test_a_tower_that_comes_later_or_is_of_another_model(tmp_path: Path) -> None:
    model, mmproj = write_seeing_gguf(tmp_path, "gemma4")
    whole, home, notes = mmproj.read_bytes(), tmp_path / "home", Notes()
    mmproj.unlink()
    first = ensure(str(model), home=home)
    _, other = write_seeing_gguf(tmp_path / "other", "qwen3_5_moe")
    mmproj.write_bytes(other.read_bytes())
    assert ensure(str(model), home=home, progress=notes).id == first.id
    assert len(notes.notes) == 1 and "takes text alone" in notes.notes[0] and "of another model" in notes.notes[0]
    mmproj.write_bytes(whole)
    second = ensure(str(model), home=home)
    assert second.manifest.vision_bytes and second.name == first.name
    assert [each.id for each in Library(home).list()] == [second.id]


def test_damage_is_found_when_a_picture_is_seen(tmp_path: Path) -> None:
    model, mmproj = write_seeing_gguf(tmp_path, "qwen3_5_moe")
    stored = pull(str(model), home=tmp_path / "home")
    assert verify(stored) == []
    data = bytearray(mmproj.read_bytes())
    data[-3] ^= 1
    mmproj.write_bytes(data)
    with Model(stored, RuntimeConfig.of(device="cpu", context=256, picture_tokens=30)) as opened:
        assert opened.generate(QUESTION, opened.params(num_predict=2)).token_ids
        with pytest.raises(StoreError, match=r"tensor '.*' in .*mmproj-F32\.gguf does not match its checksum"):
            opened.generate(asking(QUESTION, png(1)), opened.params(num_predict=2))
    [fault] = verify(stored)
    assert fault.startswith("mmproj-F32.gguf: tensor ")


def test_it_comes_with_its_model_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "repository"
    model, mmproj = write_seeing_gguf(folder, "gemma4")
    model.rename(folder / "Tiny-Q4_K_M.gguf")
    for path in (folder / "checkpoint").iterdir():
        path.unlink()
    (folder / "checkpoint").rmdir()
    with serving(folder) as served:
        point_client_at(served.endpoint, tmp_path, monkeypatch)
        notes = Notes()
        stored = ensure(REPO, home=tmp_path / "home", progress=notes)
        assert "pictures are seen by mmproj-F32.gguf, which lies beside the model" in notes.notes
        assert (stored.path / mmproj.name).read_bytes() == mmproj.read_bytes()
        assert seen(stored)[0] and verify(stored) == []
        assert pull(REPO, home=tmp_path / "home").id == stored.id
        served.seen.clear()
        text = pull(REPO, PullOptions(mmproj="none", name="blind"), home=tmp_path / "home")
        assert not text.manifest.vision_bytes and not (text.path / mmproj.name).exists()
        assert served.sent_bytes("Tiny-Q4_K_M.gguf") < 1 << 20, "the header alone: the file is there"
        Library(tmp_path / "home").remove(stored.name)
        assert verify(text) == []
        with pytest.raises(CheckpointError, match=r"has no file 'x\.gguf', which --mmproj names"):
            pull(REPO, PullOptions(mmproj="x.gguf"), home=tmp_path / "home")


def test_a_picture_is_asked_about_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    model, _ = write_seeing_gguf(tmp_path, "gemma4")
    (tmp_path / "picture.png").write_bytes(png(1))
    monkeypatch.setenv("MOEINF_HOME", str(tmp_path / "home"))
    words = [str(model), str(tmp_path / "picture.png"), QUESTION, "-n", "4", "--temperature", "0", "--num-ctx", "400"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    assert cli.run_command(["run", *words]) == 0
    assert "pictures are seen by mmproj-F32.gguf" in capfd.readouterr().err
    assert cli.run_command(["show", "model"]) == 0
    shown = capfd.readouterr().out
    assert "vision" in shown and "vision tower" in shown
