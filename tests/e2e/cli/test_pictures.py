"""Pictures among the words of `moeinf run`, and in its chat."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import ollama
import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.errors import UsageError
from moeinf.store.library import StoredModel
from moeinf.terminal.conversation_loop import Conversation
from tests.support.cli.commands import Done
from tests.support.live_server import live_server
from tests.support.seeing_models import asking, png, seeing_model

OPTIONS = ("-n", "6", "--temperature", "0", "--device", "cpu", "--num-ctx", "300")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    return seeing_model(tmp_path_factory.mktemp("seeing"), "gemma4")


@pytest.fixture
def pictures(tmp_path: Path, stored: StoredModel, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with two pictures in it; the store is that of the model which sees."""
    monkeypatch.setenv("MOEINF_HOME", str(stored.path.parents[1]))
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    return tmp_path


def response(done: Done) -> str:
    assert done.code == 0, done.err
    text: str = json.loads(done.out)["response"]
    return text


def test_a_picture_among_the_words_is_shown(stored: StoredModel, pictures: Path, command: Callable[..., Done]) -> None:

    def answer(*given: bytes) -> str:
        with Model(stored, RuntimeConfig.of(device="cpu", context=300)) as model:
            return model.generate(asking("What is this?", *given), model.params(temperature=0.0, num_predict=6)).text

    one, both = answer(png(1)), answer(png(1), png(2))
    assert response(command("run", "source", "1.png", "What is this?", *OPTIONS, "--json")) == one
    assert response(command("run", "source", "What is", "1.png", "this?", *OPTIONS, "--json")) == one
    assert response(command("run", "source", "1.png", "2.png", "What is this?", *OPTIONS, "--json")) == both


def test_words_that_are_no_files_stay_words(pictures: Path, command: Callable[..., Done]) -> None:
    (pictures / "no.txt").write_text("text")
    for words in ("Describe cat.png", "no.txt"):
        done = command("run", "source", words, *OPTIONS, "--json")
        assert json.loads(done.out)["stats"]["prompt_tokens"] < 45, "no picture"


@pytest.mark.parametrize("words", [("rename", "a.png", "to", "c.jpeg"), ("~nobody/a.png",), ("x" * 300 + ".png",)])
def test_to_a_model_of_text_names_of_pictures_are_words(
    words: tuple[str, ...], demo: StoredModel, command: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEINF_HOME", str(demo.path.parents[1]))
    done = command("run", "demo", *words, "-n", "2", "--json", "-q", "--raw")
    told = json.loads(done.out)["stats"]["prompt_tokens"]
    assert (
        told
        == json.loads(command("run", "demo", " ".join(words), "-n", "2", "--json", "-q", "--raw").out)["stats"][
            "prompt_tokens"
        ]
    )


def test_a_word_that_is_named_like_a_missing_picture_is_no_text(pictures: Path, command: Callable[..., Done]) -> None:
    done = command("run", "source", "3.png", "What is this?", *OPTIONS)
    assert done.code == 2 and done.err.strip() == (
        "Error: there is no picture file 3.png; put the whole prompt into quotes if it is part of it"
    )


def test_what_cannot_be_shown_is_one_line(
    pictures: Path, demo: StoredModel, command: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    (pictures / "bad.png").write_bytes(png(1)[:99])
    done = command("run", "source", "bad.png", "What is this?", *OPTIONS)
    assert done.code == 2 and done.err.startswith("Error: bad.png is damaged or cut short")
    monkeypatch.setenv("MOEINF_HOME", str(demo.path.parents[1]))
    done = command("run", "demo", "1.png", "What is this?")
    assert done.code == 2 and "demo:latest takes text alone" in done.err and done.err.count("\n") == 1


def test_a_server_that_has_the_model_is_given_the_picture(
    stored: StoredModel, pictures: Path, command: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("run", "source", "1.png", "What is this?", "-n", "6", "--temperature", "0", "--json")
    with live_server(stored, config=RuntimeConfig.of(device="cpu", context=300)) as server:
        ollama.Client(server.url).generate("source", "", keep_alive=-1)
        monkeypatch.setenv("MOEINF_HOST", server.url)
        done = command(*words)
        raw = command(*words, "--raw")
    assert "using the server" in done.err and "using the server" in raw.err
    monkeypatch.setenv("MOEINF_HOST", "127.0.0.1:1")
    assert response(done) == response(command(*words, "--num-ctx", "300"))
    assert response(raw) == response(command(*words, "--raw", "--num-ctx", "300"))


def test_a_question_that_failed_keeps_its_picture_for_the_next(stored: StoredModel, pictures: Path) -> None:
    with Model(stored, RuntimeConfig.of(device="cpu", context=60)) as model:
        talk = Conversation(model, {"num_predict": 2})
        talk.show_picture(pictures / "1.png")
        with pytest.raises(Exception, match="the context 60"):
            talk.ask("What is this? " * 9, lambda piece: None)
        assert len(talk.pictures) == 1 and not talk.messages
        with pytest.raises(UsageError, match="cannot be read"):
            talk.show_picture(pictures / "none.png")
        talk.ask("?", lambda piece: None)
        assert not talk.pictures and talk.take_last_question() == "?" and len(talk.pictures) == 1
