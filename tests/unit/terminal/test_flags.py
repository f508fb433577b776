"""A verb's flags are made of the fields of the options that it takes, and it gets their checked values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import typer
from typer.main import get_command

from moeinf.config import RuntimeConfig
from moeinf.config.option import options
from moeinf.config.pull_options import PullOptions
from moeinf.config.size import Share
from moeinf.engine.stored.preset import Preset
from moeinf.errors import UsageError
from moeinf.sampling.params import SamplingParams
from moeinf.terminal.arguments.chat_options import ChatOptions
from moeinf.terminal.arguments.flags import SamplingOptions, Verb, with_flags

Run = Callable[..., dict[str, Any]]


def command(verb: Verb, **how: Any) -> Any:
    app = typer.Typer(add_completion=False)
    app.command()(with_flags(**how)(verb))
    return get_command(app)


@pytest.fixture
def run() -> Run:
    got: dict[str, Any] = {}

    def verb(
        model: str, *, chat: ChatOptions, sampling: SamplingOptions, config: RuntimeConfig, source: PullOptions
    ) -> None:
        """Runs."""
        got.update(model=model, chat=chat, sampling=sampling, config=config, source=source)

    def call(*words: str) -> dict[str, Any]:
        got.clear()
        command(verb)(list(words), standalone_mode=False)
        return got

    return call


def test_a_verb_gets_the_value_of_each_class(run: Run) -> None:
    got = run("m", "--expert-cache", "40%", "--no-prefetch", "-t", "2", "--top-k", "3", "--stop", "a", "--stop", "b")
    assert got["model"] == "m" and got["source"] == PullOptions() and got["chat"] == ChatOptions()
    assert got["config"] == RuntimeConfig.of(expert_cache=Share(40), prefetch=False, threads=2)
    assert got["sampling"] == {"top_k": 3, "stop": ("a", "b")}
    got = run("m", "--think", "low", "--template-var", "a=1", "--template-var", "b=x", "--verbose", "--quant", "q4_k")
    assert got["chat"] == ChatOptions(think="low", variables={"a": 1, "b": "x"}, verbose=True)
    assert got["source"] == PullOptions(quant="q4_k") and got["sampling"] == {}


def test_a_flag_goes_before_a_pair_and_that_before_a_variable(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEINF_TOP_K", "1")
    monkeypatch.setenv("MOEINF_NUM_CTX", "100")
    assert run("m")["sampling"] == {"top_k": 1} and run("m")["config"].memory.context == 100
    got = run("m", "-o", "top_k=2", "-o", "num_ctx=200", "-o", "stop=a", "-o", "stop=b")
    assert got["sampling"] == {"top_k": 2, "stop": ("a", "b")} and got["config"].memory.context == 200
    got = run("m", "-o", "top_k=2", "--top-k", "3", "-o", "num_ctx=200", "--num-ctx", "300")
    assert got["sampling"] == {"top_k": 3} and got["config"].memory.context == 300


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-o", "top_k"), "-o 'top_k' is not NAME=VALUE"),
        (("-o", "heat=1"), "unknown option 'heat'; known: frequency_penalty"),
        (("--top-p", "7"), "top_p must be between 0 and 1, not 7.0"),
        (("--think", "loud"), "--think cannot be 'loud'"),
        (("--ram", "4"), "--ram '4' may mean 4 MiB or 4 bytes"),
    ],
)
def test_a_wrong_value_is_refused_before_the_verb_begins(run: Run, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        run("m", *words)


@pytest.mark.parametrize("words", [("--presence-penalty", "1"), ("-o", "frequency_penalty=1")])
def test_penalties_have_ollamas_window_on_the_command_line_as_with_a_model(run: Run, words: tuple[str, ...]) -> None:
    assert run("m", *words)["sampling"]["windowed_penalties"] is True
    assert "windowed_penalties" not in run("m", "--repeat-penalty", "1.1", "-o", "num_thread=0")["sampling"]
    assert Preset(options=(("presence_penalty", "0.5"),)).params["windowed_penalties"] is True


def test_every_option_has_its_flag_but_for_those_left_out() -> None:
    def verb(*, config: RuntimeConfig, sampling: SamplingOptions) -> None:
        """Runs."""

    names = {param.name for param in command(verb, without=("num_beams",)).params}
    fields = {each.name for each in (*options(RuntimeConfig), *options(SamplingParams)) if each.flags}
    assert names - {"help"} == fields - {"num_beams"} | {"option"}
