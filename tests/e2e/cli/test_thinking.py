"""The command with a model that thinks, from its checkpoint to what a pipe gets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.completion import Hooks
from moeinf.engine.model import Model
from moeinf.pull.pull import pull
from moeinf.store.library import Library, StoredModel
from tests.support.cli.commands import Done
from tests.support.speaker import write_speaker
from tests.support.thinker import SAYS, TEMPLATE, write_thinker

Command = Callable[..., Done]


@pytest.fixture(scope="module")
def thinker(demo: StoredModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoredModel]:
    home = demo.path.parents[1]
    pull(str(write_thinker(tmp_path_factory.mktemp("source") / "thinker")), home=home)
    yield Library(home).find("thinker")
    Library(home).remove("thinker")


def test_a_pipe_gets_the_answer_alone_and_json_both(command: Command, thinker: StoredModel) -> None:
    done = command("run", "thinker", "hi")
    assert (done.code, done.out, done.err) == (0, "Hello there\n", "")
    answer = json.loads(command("run", "thinker", "hi", "--json").out)
    assert (answer["response"], answer["thinking"]) == ("Hello there", "Let me see")
    assert (answer["finish_reason"], answer["cut_by"]) == ("stop", None)


@pytest.mark.parametrize(
    ("words", "thought"),
    [
        (("--think",), "Let me see"),
        (("--think=true",), "Let me see"),
        (("--think=false",), ""),
        (("--template-var", "enable_thinking=false"), ""),
    ],
)
def test_the_template_is_told_whether_to_think(
    command: Command, thinker: StoredModel, words: tuple[str, ...], thought: str
) -> None:
    answer = json.loads(command("run", "thinker", *words, "hi", "--json").out)
    assert (answer["response"], answer["thinking"]) == ("Hello there", thought)


def test_an_answer_that_is_cut_while_the_model_thinks_is_no_answer_and_says_so(
    command: Command, thinker: StoredModel
) -> None:
    done = command("run", "thinker", "hi", "-n", "3")
    assert (done.code, done.out) == (0, "\n")
    assert done.err == (
        "note: the model was still thinking: its answer was cut after 3 tokens, as num_predict asks for\n"
    )


@pytest.mark.parametrize(
    ("model", "words", "said"),
    [
        ("demo", ("--think",), "this model does not think: its chat template has no switch for it"),
        ("thinker", ("--think=high",), "this model knows no levels of thinking, only true and false"),
        ("thinker", ("--think=loud",), "--think cannot be 'loud'; it is one of true, false, low, medium, high"),
        ("thinker", ("--think", "low"), "may mean two things: write --think=low for how to think, or"),
        ("thinker", ("--template-var", "x=1"), "the chat template reads no variable 'x'; it reads: enable_thinking"),
        ("thinker", ("--template-var", "x"), "is not NAME=VALUE"),
        ("thinker", ("--think", "--raw"), "--raw does without the chat template, which --think is for"),
    ],
)
def test_what_the_template_would_ignore_is_refused_before_loading(
    command: Command,
    thinker: StoredModel,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    words: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.setattr("moeinf.engine.model.Model", None)
    done = command("run", model, "hi", *words)
    assert (done.code, done.out) == (2, "") and said in done.err and done.err.count("\n") == 1


def test_a_model_that_always_thinks_is_made_to_stop_where_it_begins(
    command: Command, tmp_path: Path, home: Path
) -> None:
    template = TEMPLATE.split("{% if enable_thinking")[0]  # it has no switch, and has the model write <think> itself
    pull(
        str(write_speaker(tmp_path / "ponderer", SAYS, f"{template}{{# <think></think> #}}", ("<think>", "</think>"))),
        home=home,
    )
    try:
        words = ("run", "ponderer", "hi", "--json")
        [free, told] = [json.loads(command(*words, *more).out) for more in ((), ("--think=false",))]
    finally:
        Library(home).remove("ponderer")
    assert (free["response"], free["thinking"]) == ("Hello there", "Let me see")
    assert (told["response"], told["thinking"]) == ("Hello there", "")


def test_a_model_that_does_not_think_need_not_be_told_not_to(command: Command) -> None:
    assert command("run", "demo", "hi", "-n", "2", "--think=false").code == 0


def test_show_tells_what_the_template_knows_of(command: Command, thinker: StoredModel, tmp_path: Path) -> None:
    assert json.loads(command("show", "thinker", "--json").out)["capabilities"] == ["completion", "thinking"]
    assert "  Capabilities\n    completion\n    thinking\n\n" in command("show", "thinker").out
    assert json.loads(command("show", "demo", "--json").out)["capabilities"] == ["completion"]


def test_python_users_get_thoughts_beside_the_answer_and_may_switch_them_off(thinker: StoredModel) -> None:
    with Model(thinker, RuntimeConfig()) as model:
        thoughts: list[str] = []
        assert "".join(model.stream("hi", hooks=Hooks(on_thought=thoughts.append))) == "Hello there"
        assert model.last is not None and model.last.thinking == "".join(thoughts) == "Let me see"
        assert model.generate("hi", think=False).thinking == ""
        raw = model.generate("<|im_start|> assistant", raw=True)
        assert (raw.text, raw.thinking) == (" <think> Let me see </think> Hello there", "")


def test_a_stop_string_is_not_looked_for_in_thoughts(thinker: StoredModel) -> None:
    with Model(thinker, RuntimeConfig()) as model:
        answer = model.generate("hi", model.params(stop=(" me", "there")))
        assert (answer.thinking, answer.text, answer.finish_reason) == ("Let me see", "Hello ", "stop")
