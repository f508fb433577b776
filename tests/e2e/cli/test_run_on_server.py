"""`moeinf run` with a server that has the model loaded."""

from __future__ import annotations

import io
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path

import ollama
import pytest

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.completion import Hooks
from moeinf.pull.pull import pull
from moeinf.server.serve import HttpServer
from moeinf.store.library import Library, StoredModel
from moeinf.terminal.conversation_loop import Conversation
from moeinf.terminal.progress import LoadBar, StatusLine
from moeinf.terminal.remote.client import NoServerError
from moeinf.terminal.remote.look import model_on_server, server_here
from moeinf.terminal.remote.remote_model import RemoteModel
from tests.support.cli.commands import Done
from tests.support.live_server import live_server
from tests.support.thinker import write_thinker

ASKED = ("run", "demo", "The king said", "-n", "12", "--seed", "3")


def found_on_server(stored: StoredModel, config: RuntimeConfig) -> RemoteModel | None:
    client, bar = server_here(), LoadBar(StatusLine(io.StringIO(), enabled=False), "")
    return None if client is None else model_on_server(client, stored, config, None, bar)


@pytest.fixture(scope="module")
def server(demo: StoredModel) -> Iterator[HttpServer]:
    with live_server(demo) as running:
        ollama.Client(running.url).generate("demo", "", keep_alive=-1)
        yield running


@pytest.fixture
def remote(server: HttpServer, demo: StoredModel, monkeypatch: pytest.MonkeyPatch) -> RemoteModel:
    monkeypatch.setenv("MOEINF_HOST", server.url)
    found = found_on_server(demo, RuntimeConfig())
    assert found is not None
    return found


def using(server: HttpServer) -> str:
    return f"using the server at {server.url}\n"


def test_an_answer_of_the_server_is_that_of_a_process_of_its_own(
    server: HttpServer, command: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = command(*ASKED)
    assert own.code == 0 and "using the server" not in own.err
    monkeypatch.setenv("MOEINF_HOST", server.url)
    told = command(*ASKED)
    assert told == Done(0, own.out, using(server) + own.err)
    assert command(*ASKED, "--quiet").out == own.out
    assert command(*ASKED, "--raw").out == own.out


def test_a_batch_says_who_keeps_memory(
    server: HttpServer, command: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = json.dumps({"prompt": "Once", "max_tokens": 2}) + "\n"
    monkeypatch.setenv("MOEINF_HOST", server.url)
    told = command("run", "demo", "--batch", "-", stdin=batch)
    assert told.code == 0 and f"note: the server at {server.url} keeps the memory that it has for demo" in told.err
    assert "note" not in command("run", "demo", "--batch", "-", "--quiet", stdin=batch).err


@pytest.mark.parametrize(
    "options",
    [
        ("--presence-penalty", "1.5", "--repeat-last-n", "-1"),
        ("--frequency-penalty", "2", "--repetition-penalty", "1.2", "--min-tokens", "3"),
        ("-o", "typical_p=0.5", "-o", "num_predict=-2", "-o", "top_k=-1", "--seed", "-5"),
    ],
)
def test_sampling_options_have_the_same_rule_on_the_server(
    server: HttpServer, command: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    own = command(*ASKED, *options)
    monkeypatch.setenv("MOEINF_HOST", server.url)
    assert own.code == 0 and command(*ASKED, *options).out == own.out


def test_an_answer_of_no_tokens_has_no_word_in_ollamas_api(
    server: HttpServer, command: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("run", "demo", "The king said", "-n", "0").out == "\n"
    monkeypatch.setenv("MOEINF_HOST", server.url)
    done = command("run", "demo", "The king said", "-n", "0")
    assert done.code == 2 and "has at least one token; give 1 or more" in done.err


def test_json_is_that_of_a_process_of_its_own_but_for_the_figures(
    server: HttpServer, command: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = json.loads(command(*ASKED, "--json").out)
    monkeypatch.setenv("MOEINF_HOST", server.url)
    done = command(*ASKED, "--json")
    told = json.loads(done.out)
    assert (told["server"], own["server"]) == (server.url, None) and done.err.startswith(using(server))
    assert told["stats"].keys() == own["stats"].keys()
    same = ("model", "response", "thinking", "finish_reason", "cut_by")
    assert {name: told[name] for name in same} == {name: own[name] for name in same}


@pytest.mark.parametrize("word", ["--ram=2GiB", "--policy=lru", "--num-ctx=128"])
def test_what_the_server_cannot_do_runs_in_a_process_of_its_own(
    server: HttpServer, command: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setenv("MOEINF_HOST", server.url)
    told = command(*ASKED, word)
    assert told.code == 0 and using(server) not in told.err


def test_options_that_the_server_was_started_with_are_no_difference(
    demo: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RuntimeConfig.of(device="cpu", expert_cache="50%")
    with live_server(demo, config=config) as running:
        monkeypatch.setenv("MOEINF_HOST", running.url)
        assert found_on_server(demo, config) is None, "it is not loaded yet"
        ollama.Client(running.url).generate("demo", "")
        assert found_on_server(demo, config) is not None
        assert found_on_server(demo, RuntimeConfig.of(device="cpu", expert_cache="40%")) is None


def test_a_server_that_has_not_loaded_the_model_loads_it(demo: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with live_server(demo) as running:
        monkeypatch.setenv("MOEINF_HOST", running.url)
        assert found_on_server(demo, RuntimeConfig.of(context=64)) is None, "it has another context there"
        remote = found_on_server(demo, RuntimeConfig())
        assert remote is not None and remote.plan.context == 2048
        assert "".join(remote.stream("The king said", remote.params(num_predict=3)))
        assert ollama.Client(running.url).ps().models[0].name == "demo:latest"


def test_a_server_with_another_store_is_left_alone(
    demo: StoredModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with live_server(Library(tmp_path)) as running:
        monkeypatch.setenv("MOEINF_HOST", running.url)
        assert found_on_server(demo, RuntimeConfig()) is None
        pull(str(write_thinker(tmp_path / "thinker")), PullOptions(name="demo"), home=tmp_path)
        assert found_on_server(demo, RuntimeConfig()) is None, "another model has that name there"


def test_keepalive_leaves_a_server_behind_that_ends_after_its_model(
    command: Callable[..., Done], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("MOEINF_HOME", str(home))
    monkeypatch.setenv("MOEINF_HOST", address)
    own = command(*ASKED, "--num-ctx", "64", "--keepalive", "0")
    assert own.code == 0 and "started" not in own.err
    first = command(*ASKED, "--num-ctx", "64", "--keepalive", "1m")
    assert first.out == own.out and f"started a server at http://{address}, which keeps the model for 1m" in first.err
    try:
        told = json.loads(command("ps", "--json").out)[0]
        assert told["context_length"] == 64 and datetime.fromisoformat(told["expires_at"]).year < 9999
        assert command(*ASKED).err.startswith(f"using the server at http://{address}\n")
        other = command(*ASKED, "--num-ctx", "128", "--keepalive", "1m")
        assert other.code == 2 and "does not run demo:latest like that; leave out --keepalive" in other.err
    finally:
        assert command("stop", "demo").code == 0
    deadline = time.monotonic() + 30
    while command("ps").code == 0:
        assert time.monotonic() < deadline, "the server has not ended"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--keepalive", "soon"), "--keepalive must be a time such as 30s"),
        (("--keepalive", "1m", "--trace", "x"), "--trace records what this command answers itself"),
        (("--keep-alive", "1m"), "--keepalive TIME keeps the model loaded"),
    ],
)
def test_a_wrong_keepalive_is_one_line(command: Callable[..., Done], words: tuple[str, ...], said: str) -> None:
    done = command(*ASKED, *words)
    assert done.code == 2 and said in done.err and done.err.count("\n") == 1


def test_keepalive_is_for_this_machine_and_says_why_no_server_starts(
    command: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEINF_HOST", "192.0.2.1:11435")
    done = command(*ASKED, "--keepalive", "1m")
    assert (
        done.code == 2 and "--keepalive keeps a model on this machine, and MOEINF_HOST is http://192.0.2.1" in done.err
    )
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:  # by what does not answer
        monkeypatch.setenv("MOEINF_HOST", f"127.0.0.1:{taken.getsockname()[1]}")
        done = command(*ASKED, "--keepalive", "1m")
    assert done.code == 1 and "no server could be started: cannot listen on 127.0.0.1:" in done.err


def test_verbose_prints_the_figures_of_the_server(
    server: HttpServer, command: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEINF_HOST", server.url)
    lines = command(*ASKED, "--verbose").err
    for label in ("total duration:", "prompt eval rate:", "eval count:           12 token(s)", "experts, "):
        assert label in lines


def test_a_server_that_wants_another_key_is_left_with_a_note(
    demo: StoredModel, command: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    with live_server(demo, keys=("the key",)) as running:
        monkeypatch.setenv("MOEINF_HOST", running.url)
        told = command(*ASKED)
    assert told.code == 0 and f"note: the server at {running.url} is not used: a key is needed" in told.err


def test_an_answer_that_is_interrupted_ends_on_the_server(remote: RemoteModel, server: HttpServer) -> None:
    hooks = Hooks(should_stop=lambda: remote.last is not None and bool(remote.last.text))
    said = "".join(remote.stream("The king said", remote.params(num_predict=-1), hooks=hooks))
    assert remote.last is not None and (remote.last.finish_reason, remote.last.text) == ("interrupted", said)
    assert said, "what came is kept"
    # The next answer can only come once the server has given up the other one.
    assert "".join(remote.stream("The king said", remote.params(num_predict=2)))


def test_a_server_that_has_ended_is_one_clear_line(demo: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with live_server(demo) as running:
        ollama.Client(running.url).generate("demo", "")
        monkeypatch.setenv("MOEINF_HOST", running.url)
        remote = found_on_server(demo, RuntimeConfig())
    assert remote is not None
    with pytest.raises(NoServerError, match="no server answers at"):
        remote.stream("The king said")


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    folder = tmp_path_factory.mktemp("thinker")
    return pull(str(write_thinker(folder / "thinker")), home=folder / "home")


def test_a_chat_shows_thoughts_and_drops_what_the_context_does_not_hold(
    thinker: StoredModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with live_server(thinker, config=RuntimeConfig.of(device="cpu", context=36)) as running:
        ollama.Client(running.url).generate("thinker", "")
        monkeypatch.setenv("MOEINF_HOST", running.url)
        remote = found_on_server(thinker, RuntimeConfig())
        assert remote is not None
        conversation = Conversation(remote, {"temperature": 0})
        for _ in range(4):
            said, thoughts = list[str](), list[str]()
            completion = conversation.ask("Hello there", said.append, thoughts.append)
            assert "".join(said) == completion.text and completion.text.strip().startswith("Hello")
            assert "".join(thoughts).strip() == "Let me see"
        conversation.change(think="false")
        assert conversation.ask("Hello", said.append).thinking == ""
    assert len(conversation.messages) < 10
    assert "the oldest question and answer were dropped" in capsys.readouterr().err


def test_nothing_leaves_this_machine(demo: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEINF_HOST", "192.0.2.1:11435")  # an address of nobody, which would not answer for long
    assert found_on_server(demo, RuntimeConfig()) is None
