"""cp, prune and the names that a shell completes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from moeinf.config.pull_options import PullOptions
from moeinf.errors import MoeinfError
from moeinf.pull.checkpoint import checkpoint_pull as steps
from moeinf.pull.pull import ensure, pull
from moeinf.store.library import Library
from moeinf.store.naming.aliases import ALIAS_FILE
from tests.support.cli.commands import Done

Command = Callable[..., Done]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    """A store that only this test has."""
    monkeypatch.setenv("MOEINF_HOME", str(tmp_path / "home"))
    ensure("demo", home=tmp_path / "home")
    return Library(tmp_path / "home")


def test_cp_gives_one_more_name_and_copies_no_weights(store: Library, command: Command) -> None:
    done = command("cp", "demo", "mine:v1")
    assert (done.code, done.out, done.err) == (0, "copied 'demo' to 'mine:v1'\n", "")
    assert store.find("mine:v1").id == store.find("demo").id
    assert command("rm", "demo").out == "deleted 'demo' (0 B freed)\n"
    assert command("run", "mine:v1", "Once", "-n", "2", "-q").code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere", "mine"), "model 'nowhere' not found"),
        (("demo", "a//b"), "a//b"),
        (("demo", "other"), "other:latest is the name of another model"),
    ],
)
def test_what_cannot_be_copied_is_one_line(words: tuple[str, ...], said: str, store: Library, command: Command) -> None:
    pull("demo", PullOptions(quant="q8_0", name="other:latest"), home=store.home)
    done = command("cp", *words)
    assert done.code != 0 and done.out == "" and said in done.err and len(done.err.splitlines()) == 1


def test_prune_deletes_what_was_interrupted_and_nothing_else(
    store: Library, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the system's has what other tests' processes have left

    def stopped(*_: object, **__: object) -> None:
        raise MoeinfError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(steps, "convert_shard", stopped)
        with pytest.raises(MoeinfError, match="stopped"):
            pull("demo", PullOptions(quant="q8_0"), home=store.home)
    assert len(store.partials()) == 1
    done = command("prune")
    assert done.code == 0 and "1 interrupted pull among it" in done.out and not done.out.startswith("0 B")
    assert store.partials() == [] and store.find("demo")
    assert command("prune").out == "nothing to delete\n"


def test_prune_deletes_what_was_measured_of_models_that_are_gone(store: Library, command: Command) -> None:
    held = store.find("demo").id
    kept = store.home / "sensitivities" / held / "a.json"
    gone = [store.home / name for name in ("sensitivities/0123456789ab/a.json", "calibrations/older.gguf")]
    for path in (kept, *gone):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(1000))
    assert command("prune").out.startswith("2.0 KB freed")
    assert kept.exists() and not any(path.exists() for path in gone)


def completed(store: Library, *words: str) -> list[str]:
    environment = os.environ | {
        "MOEINF_HOME": str(store.home),
        "_MOEINF_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run([sys.executable, "-m", "moeinf"], capture_output=True, text=True, env=environment, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_a_shell_completes_the_names_of_models(store: Library) -> None:
    assert completed(store, "moeinf", "rm", "d") == ["demo"]  # only what is stored
    (store.home / ALIAS_FILE).write_text('{"deep": "org/repo"}')
    found = completed(store, "moeinf", "run", "de")
    assert found[0] == "demo" and {"deep", "deepseek-r1", "demo:chat"} <= set(found)
    (store.home / ALIAS_FILE).write_text("damaged")
    assert completed(store, "moeinf", "run", "de") == ["demo"]
