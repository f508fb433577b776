"""Several stored forms of one known model: which is meant by its name, who is asked, and what brings one up to date."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

import moeinf
from moeinf.config.pull_options import NO_OPTIONS
from moeinf.engine.reporting import Reporting
from moeinf.errors import ModelNotFoundError
from moeinf.references.meaning import meaning, stored
from moeinf.store.library import Library, StoredModel
from moeinf.terminal.forms.stored_choice import chosen_stored
from tests.support.cli.commands import Done
from tests.support.hub_server import Hub
from tests.support.known_models import keep_rates, published, write_forms
from tests.support.owners import ollama_store

Command = Callable[..., Done]
BEST, OTHER = "story:5m-q8_0", "story:5m-q4_k_m"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_forms(tmp_path_factory.mktemp("files"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def hub(files: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    keep_rates(home, monkeypatch)
    with published(files, tmp_path, monkeypatch) as served:
        yield served


@pytest.fixture
def both(command: Command, hub: Hub) -> None:
    """The smaller form came last, so that neither age nor the alphabet tells which is the better one."""
    for tag in ("q8_0", "q4_K_M"):
        assert command("pull", f"story:{tag}").code == 0
    hub.seen.clear()


@pytest.mark.parametrize("name", ["story", "Story:5M", "story:5m-instruct"])
def test_a_pipe_takes_the_best_and_says_so(name: str, command: Command, home: Path, both: None, hub: Hub) -> None:
    done = command("run", name, "Once", "-n", "2", "--temperature", "0")
    assert done.code == 0 and f"taking {BEST}" in done.err and OTHER in done.err, done
    assert done.out == command("run", BEST, "Once", "-n", "2", "--temperature", "0").out
    assert not hub.seen and len(Library(home).list()) == 2


def test_programs_take_the_best_and_are_told(both: None, hub: Hub) -> None:
    told = list[str]()
    with moeinf.load("story", reporting=Reporting(notify=told.append)) as model:
        assert model.name == BEST
    assert any(f"taking {BEST}" in line for line in told) and not hub.seen


def test_other_verbs_and_clients_are_told_the_names(command: Command, home: Path, both: None) -> None:
    done = command("show", "story")
    assert done.code == 1 and f"several forms of 'story' are stored; name one: {BEST}, {OTHER}" in done.err
    with pytest.raises(ModelNotFoundError, match=f"name one: {BEST}, {OTHER}"):
        stored("story", Library(home))


def test_what_is_stored_goes_before_what_other_programs_have(
    command: Command, both: None, files: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEINF_FOREIGN", "1")
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    ollama_store(tmp_path / "user", "story:5m", files / "Story-Q8_0.gguf")
    assert f"taking {BEST}" in command("run", "story", "Once", "-n", "1").err
    assert len(Library(home).list()) == 2


def test_a_pull_of_the_name_still_offers_what_is_published(command: Command, both: None) -> None:
    done = command("pull", "story", "--dry-run")
    assert done.code == 0 and "forms of story" in done.err, done


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "name", "asked"),
    [("\n", BEST, 1), ("2\n", OTHER, 1), ("Q4_K_M\n", OTHER, 1), (f"{OTHER}\n", OTHER, 1), ("q5\n1\n", BEST, 2)],
)
def test_a_terminal_asks(
    typed: str, name: str, asked: int, both: None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = _terminal(typed, monkeypatch)
    assert _chosen(home).name == name
    assert said.getvalue().count("which?") == asked and BEST in said.getvalue() and OTHER in said.getvalue()


@pytest.mark.parametrize("typed", ["n\n", ""])
def test_a_terminal_takes_no_for_an_answer(typed: str, both: None, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _terminal(typed, monkeypatch)
    with pytest.raises(typer.Exit) as raised:
        _chosen(home)
    assert raised.value.exit_code == 1


def _terminal(typed: str, monkeypatch: pytest.MonkeyPatch) -> _Terminal:
    said = _Terminal()
    monkeypatch.setattr(sys, "stdin", _Terminal(typed))
    monkeypatch.setattr(sys, "stderr", said)
    return said


def _chosen(home: Path) -> StoredModel:
    found = meaning("story", NO_OPTIONS, Library(home))
    return chosen_stored(found.asked, found.several, yes=False, quiet=False)


def test_a_form_under_a_name_of_its_own_is_brought_up_to_date_by_the_models_name(
    command: Command, home: Path, hub: Hub
) -> None:
    assert command("pull", "story:q4_K_M", "--name", "short").code == 0
    done = command("pull", "story", "--name", "short")
    assert done.code == 0, done
    source = Library(home).find("short").manifest.source
    assert source.file == "Story-Q4_K_M.gguf" and len(Library(home).list()) == 1


def test_a_name_that_holds_another_model_is_refused_with_a_remedy(command: Command, home: Path, hub: Hub) -> None:
    assert command("pull", "demo", "--name", "mine").code == 0
    for given in ("story", "story:q4_K_M"):
        done = command("pull", given, "--name", "mine")
        assert done.code == 2 and "mine:latest is the name of a model of demo, which is kept" in done.err, done
        assert done.err.splitlines()[-1].startswith("Error: ") and re.search(
            r"`moeinf pull (maker/Story-GGUF:Story-\S+|org/Tiny-MoE) --name OTHER`", done.err
        ), done.err
    assert Library(home).find("mine").manifest.source.kind == "embedded"
