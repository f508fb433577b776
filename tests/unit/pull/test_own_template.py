"""A pull gives a model that comes without a chat template one of moeinf's own, where there is one, and says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moeinf.config.pull_options import PullOptions
from moeinf.engine.stored.facts import StoredFacts
from moeinf.pull.pull import plan_pull, pull
from moeinf.terminal.stored.show import show_json, show_lines
from moeinf.text.templates.file import TEMPLATE_FILE
from moeinf.text.templates.own import OWN_NOTE
from tests.support.checkpoints import write_checkpoint
from tests.support.configs.deepseek_v32 import DEEPSEEK_V32
from tests.support.deepseek41_gguf import write_deepseek41
from tests.support.hub_server import REPO, point_client_at, serving
from tests.support.mixed_gguf import without_vocabulary
from tests.support.pairs.pulled import Notes, pulled, written


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "DeepSeek-V3.2"
    written(DEEPSEEK_V32, folder)
    (folder / "encoding").mkdir()
    (folder / "encoding" / "encoding_dsv32.py").write_text("raise SystemExit")
    return folder


def test_a_checkpoint_is_given_one(checkpoint: Path) -> None:
    assert OWN_NOTE in plan_pull(str(checkpoint), home=checkpoint.parent / "home").fallbacks
    stored, notes = pulled(checkpoint)
    assert notes.count(OWN_NOTE) == 1 and not stored.manifest.formats.fallbacks
    facts = StoredFacts(stored)
    assert "function_calls" in facts.template and facts.capabilities == ("completion", "tools", "thinking")
    assert "chat template" in "\n".join(show_lines(stored)) and json.loads(show_json(stored))["own_template"] is True


def test_a_model_of_an_older_version_is_given_one_by_another_pull(checkpoint: Path) -> None:
    stored, _ = pulled(checkpoint)
    given = StoredFacts(stored).template
    (stored.path / TEMPLATE_FILE).unlink()
    again, notes = pulled(checkpoint)
    assert again.id == stored.id and notes == [OWN_NOTE] and StoredFacts(again).template == given
    assert pulled(checkpoint)[1] == []


def test_the_checkpoints_own_stays(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    written(DEEPSEEK_V32, folder)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    stored, notes = pulled(folder)
    assert StoredFacts(stored).template == "{{ messages }}" and OWN_NOTE not in notes
    assert "chat template" not in "\n".join(show_lines(stored)) and not json.loads(show_json(stored))["own_template"]


def test_a_base_model_stays_one(tmp_path: Path) -> None:
    written(DEEPSEEK_V32, tmp_path / "DeepSeek-V3.2-Base")
    stored, notes = pulled(tmp_path / "DeepSeek-V3.2-Base")
    assert StoredFacts(stored).template == "" and OWN_NOTE not in notes


def test_a_repository_is_given_that_of_its_code(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(checkpoint) as served:
        point_client_at(served.endpoint, tmp_path, monkeypatch)
        assert OWN_NOTE in plan_pull(REPO, home=tmp_path / "home").fallbacks
        assert any(seen.path.endswith("encoding_dsv32.py") for seen in served.seen)


@pytest.mark.parametrize("name", ["encoding/encoding.py", "encoding_k3.py"])
def test_code_that_is_not_known_is_told(name: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    (folder / "encoding").mkdir()
    (folder / name).write_text("pass")
    notes = Notes()
    stored = pull(str(folder), home=tmp_path / "home", progress=notes)
    assert any(line.startswith("no chat template: the checkpoint writes chats by code") for line in notes.lines)
    assert StoredFacts(stored).template == ""


def test_a_gguf_file_is_given_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_vocabulary(monkeypatch)
    notes = Notes()
    path = write_deepseek41(tmp_path / "model.gguf", {})
    stored = pull(str(path), PullOptions(name="tiny"), home=tmp_path / "home", progress=notes)
    assert "<｜DSML｜ calls>" in StoredFacts(stored).template and notes.lines.count(OWN_NOTE) == 1
    path = write_deepseek41(tmp_path / "model-Base.gguf", {})
    stored = pull(str(path), PullOptions(name="base"), home=tmp_path / "home")
    assert StoredFacts(stored).template == ""
