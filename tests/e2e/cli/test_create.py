"""`moeinf create`: a name with a system message and options of its own, in the command, the server and Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import moeinf
from moeinf.engine.speed.rates_file import save
from moeinf.engine.stored.preset import Preset, preset_of
from moeinf.pull.pull import ensure
from moeinf.server.ask import Ask
from moeinf.server.ollama.descriptions import identity
from moeinf.server.prompt.prompt_preset import with_preset
from moeinf.store.library import Library
from moeinf.terminal.conversation_loop import Conversation
from tests.support.adapters import Q, factors, write_adapter
from tests.support.cli.commands import Done
from tests.support.rates import rates_of_this_machine

Command = Callable[..., Done]
MODELFILE = 'FROM demo:chat\nPARAMETER temperature 0\nPARAMETER num_ctx 256\nSYSTEM "You tell of cats."\n'


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    """A store that only this test has, in a folder with a Modelfile."""
    monkeypatch.setenv("MOEINF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Modelfile").write_text(MODELFILE)
    ensure("demo:chat", home=tmp_path / "home")
    return Library(tmp_path / "home")


def test_a_context_beyond_the_model_is_refused(store: Library, command: Command, tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_text("FROM demo:chat\nPARAMETER num_ctx 999999999999\n")
    done = command("create", "cats")
    assert done.code == 2 and "beyond the model's 2048 tokens" in done.err
    assert [model.name for model in store.list()] == ["demo:chat"]


def test_a_created_model_answers_as_its_options_say(store: Library, command: Command) -> None:
    done = command("create", "cats")
    assert (done.code, done.out, done.err) == (0, "created 'cats'\n", "")
    assert store.find("cats").id == store.find("demo:chat").id
    words = ("Tell me a story.", "-n", "12", "--json", "-q")
    mine = json.loads(command("run", "cats", *words).out)
    same = json.loads(
        command("run", "demo:chat", *words, "--temperature", "0", "-s", "You tell of cats.", "-c", "256").out
    )
    assert mine["response"] == same["response"]
    other = command("run", "cats", *words, "--temperature", "1.5", "--seed", "3")  # a flag counts more
    assert json.loads(other.out)["response"] != mine["response"]


def test_an_adapter_is_merged_into_the_model_it_is_made_of(store: Library, command: Command, tmp_path: Path) -> None:
    write_adapter(tmp_path / "mine" / "tuned", factors(Q, 128, 128))
    (tmp_path / "mine" / "Modelfile").write_text(MODELFILE + "ADAPTER ./tuned\n")
    assert command("create", "cats", "-f", "mine/Modelfile").out == "created 'cats'\n"
    assert store.find("cats").id == store.find("demo:tuned").id != store.find("demo:chat").id
    words = ("Tell me a story.", "-n", "12", "--temperature", "0", "-q")
    tuned, by_run, without = (
        command("run", *which, *words)
        for which in (["demo:tuned"], ["demo:chat", "--lora", "mine/tuned"], ["demo:chat"])
    )
    assert tuned.out == by_run.out != without.out
    assert "merged with the LoRA adapter" in command("show", "cats").out
    refused = command("run", "demo:chat", "--lora", "mine/tuned", "--plan")
    assert refused.code == 2 and "--lora: an adapter changes neither" in refused.err
    assert command("show", "cats", "--modelfile").out.startswith("FROM demo:tuned\n")


def test_plans_and_benchmarks_go_by_its_options(store: Library, command: Command) -> None:
    command("create", "cats")
    save(rates_of_this_machine(), store.home)
    assert json.loads(command("fit", "cats", "--json").out)["context"] == 256
    assert json.loads(command("fit", "cats", "--json", "-c", "512").out)["context"] == 512
    rows = json.loads(command("bench", "cats", "-p", "8", "-n", "4", "-r", "0", "-o", "json", "-q").out)
    assert rows[0]["n_ctx"] == 256


def test_what_show_prints_makes_the_same_model_again(store: Library, command: Command, tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_text(MODELFILE + 'PARAMETER stop """a\nb"""\nPARAMETER stop x y\n')
    command("create", "cats")
    command("cp", "cats", "kittens")
    digest = store.find("cats").own_id
    for with_base in (True, False):
        printed = command("show", "kittens", "--modelfile").out
        assert printed.startswith("FROM demo:chat\n")
        (tmp_path / "again").write_text(printed)
        for each in ("cats", "kittens") if not with_base else ("cats",):
            command("rm", each)
        if with_base:
            command("rm", "demo:chat")  # then it is made of the source
        assert command("create", "cats", "-f", "again").code == 0
        command("cp", "cats", "kittens")
        assert store.find("cats").own_id == digest


def test_a_created_model_is_another_one_than_its_base(store: Library, command: Command) -> None:
    command("create", "cats")
    command("create", "dogs")
    command("cp", "demo:chat", "plain")
    ids = {each["name"]: each["id"] for each in json.loads(command("list", "--json").out)}
    assert ids["cats:latest"] == ids["dogs:latest"] != ids["demo:chat"] == ids["plain:latest"]
    told = {name: identity(store.find(name))["digest"] for name in ids}
    assert all(len(told[name]) == 64 and told[name].startswith(ids[name]) for name in ids)
    assert all(
        ids[name] in line for name in ids for line in command("list", name.partition(":")[0]).out.splitlines()[1:]
    )


def test_its_settings_are_shown_copied_and_gone_with_the_name(store: Library, command: Command) -> None:
    command("create", "cats")
    assert command("show", "cats", "--system").out == "You tell of cats.\n"
    assert "PARAMETER num_ctx 256" in command("show", "cats", "--modelfile").out
    assert "You tell of cats." in command("show", "cats").out
    assert json.loads(command("show", "cats", "--json").out)["system"] == "You tell of cats."
    assert command("show", "demo:chat", "--system").out == "\n"
    command("cp", "cats", "more")
    assert preset_of(store.find("more")).system == "You tell of cats."
    command("rm", "cats")
    command("cp", "demo:chat", "cats")
    assert preset_of(store.find("cats")).system == ""


def test_one_that_is_made_of_another_says_what_it_says(store: Library, command: Command, tmp_path: Path) -> None:
    command("create", "cats")
    (tmp_path / "second").write_text("FROM cats\nPARAMETER temperature 0.5\n")
    assert command("create", "kittens", "-f", "second").code == 0
    found = preset_of(store.find("kittens"))
    assert found.system == "You tell of cats." and found.params["temperature"] == 0.5
    assert found.config == {"context": 256}
    (tmp_path / "Modelfile").write_text("FROM demo:chat\n")
    assert command("create", "cats").code == 0 and preset_of(store.find("cats")) == Preset()


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (MODELFILE, ("a//b",), "a//b"),
        ("FROM nowhere-at-all", ("cats",), "model 'nowhere-at-all' not found"),
        ("FROM demo:chat\nADAPTER x", ("cats",), "--lora 'x' is neither a folder nor org/repo"),
        (MODELFILE, ("cats", "-f", "missing"), "specified Modelfile wasn't found"),
    ],
)
def test_what_cannot_be_created_is_one_line_and_leaves_no_name(
    text: str, words: tuple[str, ...], said: str, store: Library, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "Modelfile").write_text(text)
    done = command("create", *words)
    assert done.code != 0 and done.out == "" and said in done.err and len(done.err.splitlines()) == 1
    assert [model.name for model in store.list()] == ["demo:chat"]


def test_in_python_its_options_hold(store: Library, command: Command) -> None:
    command("create", "cats")
    with moeinf.load("cats", device="cpu") as model:
        assert model.plan.context == 256
        assert model.params().temperature == 0 and model.params(temperature=1.0).temperature == 1
        conversation = Conversation(model, preset=preset_of(store.find("cats")))
        assert conversation.system == "You tell of cats."
        conversation.change(system="")
        assert conversation.system == ""


PRESET = Preset("Be brief.", (("temperature", "0"), ("num_ctx", "64")))
USER = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("ask", "prompt"),
    [
        (Ask("m", "hi"), [SYSTEM, USER]),
        (Ask("m", [USER]), [SYSTEM, USER]),
        (Ask("m", [{"role": "system", "content": "mine"}, USER]), [{"role": "system", "content": "mine"}, USER]),
        (Ask("m", "hi", raw=True), "hi"),
        (Ask("m", None), None),
    ],
)
def test_a_server_says_what_the_client_does_not(ask: Ask, prompt: object) -> None:
    made = with_preset(ask, PRESET)
    assert made.prompt == prompt and made.params == {"temperature": 0.0} and made.config == {"context": 64}


def test_what_the_client_says_counts_more() -> None:
    made = with_preset(Ask("m", "hi", params={"temperature": 1.0}, config={"context": 8}), PRESET)
    assert made.params == {"temperature": 1.0} and made.config == {"context": 8}
