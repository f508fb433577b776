"""Models of other programs on this disk: found, used where they lie, told apart, and left as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moeinf.engine.stored.preset import preset_of
from moeinf.references.foreign.owners import foreign_model
from moeinf.store.library import Library
from moeinf.store.naming import catalogue
from tests.support.cli.commands import Done
from tests.support.hub_server import Hub
from tests.support.known_models import FILES, published, write_forms
from tests.support.owners import hub_cache, llama_cpp_file, lm_studio_file, ollama_store, state_of

Command = Callable[..., Done]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_forms(tmp_path_factory.mktemp("files"))


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder of the user, in which the other programs keep theirs."""
    folder = tmp_path / "user"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("MOEINF_FOREIGN", "1")
    for name in ("OLLAMA_MODELS", "LLAMA_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def hub(files: Path, user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub that is never asked."""
    with published(files, tmp_path, monkeypatch) as served:
        yield served
        assert served.seen == []


def test_ollamas_model_is_used_where_it_lies(command: Command, home: Path, user: Path, hub: Hub, files: Path) -> None:
    params = {"temperature": 0, "stop": ["</s>", "<end>"], "penalize_newline": True}
    ollama_store(
        user, "story:5m", files / "Story-Q4_K_M.gguf", system="Tell a story.", params=params, template="{{ .Prompt }}"
    )
    before = state_of(user)
    done = command("run", "story", "Once upon a time", "-n", "4")
    assert done.code == 0 and done.out.strip(), done
    assert "the files of ollama, which stay as they are" in done.err
    assert "its option penalize_newline true is left out" in done.err
    stored = Library(home).find("story:5m")
    assert preset_of(stored).system == "Tell a story." and preset_of(stored).params["temperature"] == 0
    assert preset_of(stored).params["stop"] == ("</s>", "<end>")
    assert sum(path.stat().st_size for path in home.rglob("*") if path.is_file()) < 4e6, "weights were copied"
    again = command("run", "story:5m", "Once upon a time", "-n", "4")
    assert again.out == done.out and "stay as they are" not in again.err
    assert state_of(user) == before


CHATML = "<|im_start|>user\n{{ .Prompt }}<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_in_go_is_taken_by_its_family(
    command: Command, home: Path, user: Path, hub: Hub, files: Path
) -> None:
    ollama_store(user, "story:5m", files / "Story-Q4_K_M.gguf", template=CHATML)
    assert command("run", "story", "Once", "-n", "1").code == 0
    shown = command("show", "story:5m", "--template").out
    assert "<|im_start|>" in shown and "message.role" not in CHATML, shown
    assert command("pull", "story:5m").code == 0, "checks the file, and makes the model anew"
    assert command("show", "story:5m", "--template").out == shown
    assert command("verify", "story:5m").code == 0


def test_a_template_in_go_that_is_not_known_is_refused_with_what_can_be_done(
    command: Command, home: Path, user: Path, hub: Hub, files: Path
) -> None:
    manifest = ollama_store(user, "story:5m", files / "Story-Q4_K_M.gguf", template="{{ . }}")
    done = command("run", "story", "Once", "-n", "1")
    assert done.code == 2 and len(done.err.splitlines()) == 1, done
    assert "ollama's story:5m has a chat template in Go that is none of those known here (ChatML," in done.err
    assert not Library(home).list()
    blob = re.search(r"`moeinf run (\S+)`", done.err)
    assert blob is not None and command("run", blob[1], "Once", "-n", "1").code == 0 and manifest.exists()


@pytest.mark.parametrize("reference", ["story", "story:5m", f"{FILES}:Q8_0", FILES, "lmstudio:" + FILES])
def test_a_file_of_lm_studio_is_meant_by_its_names(
    reference: str, command: Command, home: Path, user: Path, hub: Hub, files: Path
) -> None:
    lm_studio_file(user, FILES, files / "Story-Q8_0.gguf")
    before = state_of(user)
    done = command("run", reference, "Once", "-n", "2")
    assert done.code == 0 and "the files of lmstudio" in done.err, done
    assert [model.name for model in Library(home).list()] == ["story:5m-q8_0"]
    assert state_of(user) == before


@pytest.mark.parametrize(
    ("repo", "file"),
    [
        ("somebody/Tiny-MoE-GGUF", "Story-Q8_0.gguf"),
        ("somebody/maker_tiny-moe-i1-GGUF", "tiny-moe.Q8_0.gguf"),
        ("somebody/maker_Tiny-MoE-gguf", "x-Q8_0.gguf"),
        ("somebody/else", "Tiny-MoE-Q8_0-00001-of-00001.gguf"),
    ],
)
def test_a_file_of_whoever_quantised_it_is_meant_by_the_name_of_its_model(
    repo: str, file: str, tmp_path: Path, user: Path, hub: Hub, files: Path
) -> None:
    """The made-up catalogue has the checkpoint org/Tiny-MoE."""
    (tmp_path / file).write_bytes((files / "Story-Q8_0.gguf").read_bytes())
    path = lm_studio_file(user, repo, tmp_path / file)
    found = foreign_model("story")
    assert found is not None and found.path == path and found.own_name == "story:5m-q8_0"


def test_a_pull_uses_what_is_here(command: Command, home: Path, user: Path, hub: Hub, files: Path) -> None:
    lm_studio_file(user, FILES, files / "Story-Q8_0.gguf")
    plan = command("pull", "story", "--dry-run")
    assert plan.code == 0 and "fetch 0 B" in plan.out and not Library(home).list(), plan
    assert "the files of lmstudio" in command("pull", "story").err
    assert [model.name for model in Library(home).list()] == ["story:5m-q8_0"]


def test_llama_cpps_cache_and_the_hubs_are_looked_into(
    command: Command, home: Path, user: Path, hub: Hub, files: Path
) -> None:
    llama_cpp_file(user, FILES, files / "Story-Q4_K_M.gguf")
    hub_cache(user, FILES, files / "Story-Q8_0.gguf")
    assert "of llama.cpp" in command("run", "story:q4_K_M", "Once", "-n", "2").err
    assert "of hub" in command("run", "story:q8_0", "Once", "-n", "2").err
    assert sorted(model.name for model in Library(home).list()) == ["story:5m-q4_k_m", "story:5m-q8_0"]


def test_a_checkpoint_in_the_hubs_cache_is_converted(command: Command, home: Path, user: Path, hub: Hub) -> None:
    demo = catalogue.DATA / "demo"
    hub_cache(user, "org/Tiny-MoE", *(path for path in demo.iterdir() if path.is_file()))
    before = state_of(user)
    done = command("run", "story", "Once", "-n", "2")
    assert done.code == 0 and "is converted from the files of hub" in done.err, done
    assert state_of(user) == before


def test_names_of_two_owners_are_told_apart(command: Command, home: Path, user: Path, hub: Hub, files: Path) -> None:
    ollama_store(user, "story:5m", files / "Story-Q4_K_M.gguf")
    lm_studio_file(user, FILES, files / "Story-Q8_0.gguf")
    rows = [line.split() for line in command("list").out.splitlines()]
    assert ["story:5m", "ollama", "3.3", "MB"] in rows and ["story:5m-q8_0", "lmstudio", "6.1", "MB", "q8_0"] in rows
    told = json.loads(command("list", "--json").out)
    assert {each["owner"]: each["format"] for each in told} == {"ollama": "", "lmstudio": "q8_0"}
    assert "of lmstudio" in command("run", "story", "Once", "-n", "2").err  # the larger one
    assert "of ollama" in command("run", "ollama:story:5m", "Once", "-n", "2").err
    stored = {model.name for model in Library(home).list()}
    assert stored == {"story:5m-q8_0", "story:5m"}
    assert "OWNER" not in command("list").out, "the store tells of both now"
    assert command("show", "ollama:story:5m").code == 0
    assert command("run", "ollama:other", "hi").code == 1


def test_a_file_that_its_owner_removes_is_one_line(
    command: Command, home: Path, user: Path, hub: Hub, files: Path
) -> None:
    path = lm_studio_file(user, FILES, files / "Story-Q8_0.gguf")
    assert command("run", "story", "Once", "-n", "2").code == 0
    path.unlink()
    done = command("run", "story:5m-q8_0", "Once", "-n", "2")
    assert done.code == 1 and done.err.count("\n") == 1 and str(path) in done.err, done


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda m: m.write_text("{"), "it is not whole"),
        (lambda m: m.write_text(m.read_text().replace('"schemaVersion": 2', '"schemaVersion": 3')), "of another form"),
        (lambda m: m.write_text(m.read_text().replace("image.model", "image.tensor")), "it has no GGUF file"),
        (lambda m: next((m.parents[4] / "blobs").iterdir()).unlink(), "it is not whole"),
        (lambda m: next((m.parents[4] / "blobs").iterdir()).write_bytes(b"GGUF"), "it is not whole"),
        (lambda m: m.write_text(m.read_text().replace("sha256:", "sha256:../../")), "is no digest"),
    ],
    ids=["cut", "newer", "tensors", "gone", "short", "elsewhere"],
)
def test_a_store_of_ollama_that_is_damaged_is_one_line(
    damage: Callable[[Path], object], said: str, command: Command, home: Path, user: Path, hub: Hub, files: Path
) -> None:
    damage(ollama_store(user, "story:5m", files / "Story-Q8_0.gguf"))
    assert said in command("list").out.replace("\n", " ")
    done = command("run", "story", "hi")
    assert (done.code == 2 and f"ollama's story:5m cannot be used: {said}" in done.err) or said in done.err, done
    assert done.err.count("\n") == 1


def test_a_store_of_ollama_of_another_layout_is_told(command: Command, home: Path, user: Path, files: Path) -> None:
    manifest = ollama_store(user, "story:5m", files / "Story-Q8_0.gguf")
    manifest.rename(manifest.parents[3] / "elsewhere")
    shown = " ".join(command("list").out.split())
    assert "note: ollama's store in" in shown and "it may be of a newer layout" in shown
    assert "newer layout" not in command("run", "nothing", "hi").err


def test_who_wants_none_of_it_switches_it_off(
    command: Command, home: Path, user: Path, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ollama_store(user, "another:5m", files / "Story-Q8_0.gguf")
    monkeypatch.setenv("MOEINF_FOREIGN", "0")
    assert "another" not in command("list").out
    assert command("run", "another:5m", "hi").code == 1


def test_an_adapter_or_a_format_is_not_asked_of_other_programs(
    command: Command, home: Path, user: Path, files: Path
) -> None:
    ollama_store(user, "another:5m", files / "Story-Q8_0.gguf")
    assert "not found" in command("run", "another:5m", "hi", "--quant", "q4_k").err
