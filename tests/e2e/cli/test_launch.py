"""`moeinf launch` with agents that only tell what they were given."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ollama
import pytest

from moeinf.pull.pull import ensure
from moeinf.store.library import StoredModel
from moeinf.terminal.agents.known_agents import AGENTS
from tests.support.cli.commands import COMMAND, Done
from tests.support.live_server import live_server

URLS = {"claude": "ANTHROPIC_BASE_URL", "qwen": "OPENAI_BASE_URL", "aider": "OPENAI_API_BASE"}
MODEL_OPTION = {"cline": "-m", "pi": "--model"}
REPORT = f"""#!{sys.executable}
import json, os, pathlib, sys, time
told = {{"words": sys.argv[1:], "variables": dict(os.environ), "process": os.getpid()}}
named = [text for name, text in os.environ.items() if name.startswith(("AIDER_MODEL_", "CLINE_"))]
told["files"] = {{path: pathlib.Path(path).read_text() for path in sys.argv[1:] + named if os.path.isfile(path)}}
pathlib.Path(os.environ["REPORT"]).write_text(json.dumps(told))
while "WAIT" in os.environ:
    time.sleep(0.1)
sys.exit(7)
"""


@pytest.fixture(scope="module")
def storyteller(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    return ensure("demo:chat", home=tmp_path_factory.mktemp("store"))


@pytest.fixture
def agents(storyteller: StoredModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """All agents are installed. The file that each writes its report to."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for agent in AGENTS.values():
        (folder / agent.command).write_text(REPORT)
        (folder / agent.command).chmod(stat.S_IRWXU)
    home, report = tmp_path / "user", tmp_path / "report.json"
    home.mkdir()
    for name, value in (
        *(("PATH", f"{folder}:{os.environ['PATH']}"), ("HOME", str(home)), ("REPORT", str(report))),
        *(("MOEINF_HOME", str(storyteller.home)), ("ANTHROPIC_API_KEY", "of the user")),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MOEINF_API_KEY", raising=False)
    yield report
    assert list(home.iterdir()) == [], "nothing is written for the user"


def reported(report: Path) -> Any:
    return json.loads(report.read_text())


def cline_provider(told: Any) -> Any:
    """What the file of providers that cline reads has of the one that it is to use."""
    assert told["words"][:2] == ["-P", "openai-compatible"]
    providers = json.loads(told["files"][told["variables"]["CLINE_PROVIDER_SETTINGS_PATH"]])["providers"]
    return providers["openai-compatible"]["settings"]


def pi_provider(told: Any) -> Any:
    """What pi's extension gives it: a name and a provider."""
    option, path, *chosen = told["words"]
    assert option == "--extension" and chosen[:2] == ["--provider", "moeinf"]
    begun, provider = told["files"][path].split("(", 2)[2].split(", ", 1)
    assert begun == '"moeinf"'
    return json.loads(provider.removesuffix(");"))


def base_url(name: str, told: Any) -> str:
    """Where an agent was sent, whichever way it is told."""
    if name in URLS:
        url = told["variables"][URLS[name]]
    elif name == "opencode":
        config = json.loads(told["variables"]["OPENCODE_CONFIG_CONTENT"])
        assert config["model"] == "moeinf/demo:chat" and config["provider"]["moeinf"]["options"]["apiKey"] == "moeinf"
        url = config["provider"]["moeinf"]["options"]["baseURL"]
    elif name in ("cline", "pi"):
        provider = cline_provider(told) if name == "cline" else pi_provider(told)
        assert provider["apiKey"] == "moeinf" and told["words"][-4:-2] == [MODEL_OPTION[name], "demo:chat"]
        url = provider["baseUrl"]
    else:
        settings = dict(word.split("=", 1) for word in told["words"][1:-2:2])
        assert json.loads(settings["model"]) == "demo:chat" and told["words"][0] == "-c"
        assert told["variables"][json.loads(settings["model_providers.moeinf.env_key"])] == "moeinf"
        url = json.loads(settings["model_providers.moeinf.base_url"])
    assert isinstance(url, str)
    return url


@pytest.mark.parametrize("name", list(AGENTS))
def test_an_agent_is_told_of_the_server_and_the_model(
    agents: Path, command: Callable[..., Done], name: str, storyteller: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with live_server(storyteller) as running:
        monkeypatch.setenv("MOEINF_HOST", running.url)
        done = command("launch", name, "demo:chat", "--", "--help", "--debug")
        assert [model.name for model in ollama.Client(running.url).ps().models] == ["demo:chat"]
    told = reported(agents)
    assert done.code == 7 and f"using the server at {running.url}\n" in done.err
    assert told["words"][-2:] == ["--help", "--debug"]
    assert base_url(name, told).removesuffix("/v1") == running.url
    assert "with a context of 2048" in done.err and "has about" in done.err  # too short for any agent


def test_claude_gets_a_key_of_its_own_and_others_the_limits_of_the_model(
    agents: Path, command: Callable[..., Done], storyteller: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with live_server(storyteller) as running:
        monkeypatch.setenv("MOEINF_HOST", running.url)
        command("launch", "claude", "demo:chat")
        variables = reported(agents)["variables"]
        assert "ANTHROPIC_API_KEY" not in variables and variables["ANTHROPIC_AUTH_TOKEN"] == "moeinf"
        assert variables["ANTHROPIC_MODEL"] == variables["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "demo:chat"
        command("launch", "aider", "demo:chat", "--quiet")
        told = reported(agents)
        path = told["variables"]["AIDER_MODEL_METADATA_FILE"]
        assert json.loads(told["files"][path])["openai/demo:chat"]["max_input_tokens"] == 2048
        assert not Path(path).exists(), "the folder was for the run alone"
        command("launch", "cline", "demo:chat")
        told = reported(agents)
        assert cline_provider(told)["contextWindow"] == 2048 and cline_provider(told)["model"] == "demo:chat"
        assert told["variables"]["CLINE_SESSION_BACKEND_MODE"] == "local", "a daemon would know other variables"
        command("launch", "pi", "demo:chat")
        (model,) = pi_provider(reported(agents))["models"]
        assert model["id"] == "demo:chat" and model["contextWindow"] == 2048 and model["maxTokens"] == 512


def test_a_server_is_started_for_an_agent_and_ends_with_it(
    agents: Path, command: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEINF_PORT", "1")  # of the user's own server
    done = command("launch", "qwen", "--num-ctx", "512")
    told = reported(agents)["variables"]
    assert done.code == 7 and "no model was named; this is demo:chat, the newest that calls tools" in done.err
    assert f"started a server at {told['OPENAI_BASE_URL'].removesuffix('/v1')}, which ends with Qwen Code" in done.err
    assert "context of 512" in done.err and told["OPENAI_MODEL"] == "demo:chat"
    with pytest.raises(OSError):
        urllib.request.urlopen(told["OPENAI_BASE_URL"] + "/models", timeout=5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_agent_and_the_server(agents: Path, number: signal.Signals) -> None:
    child = subprocess.Popen(
        [*COMMAND, "launch", "qwen", "demo:chat"],
        env=os.environ | {"WAIT": "1", "MOEINF_HOST": "127.0.0.1:0"},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not agents.exists() or not agents.read_text().endswith("}"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    told = reported(agents)
    child.send_signal(number)
    child.wait(60)
    assert child.returncode == (143 if number == signal.SIGTERM else -9)
    if number == signal.SIGKILL:  # which leaves the agent
        os.kill(told["process"], signal.SIGTERM)
    with pytest.raises(OSError):  # the server of one that was killed takes a moment
        while time.monotonic() < deadline:
            urllib.request.urlopen(told["variables"]["OPENAI_BASE_URL"] + "/models", timeout=5)
            time.sleep(0.1)


def test_what_is_wrong_is_one_line(
    agents: Path, command: Callable[..., Done], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("launch", "cluade").err == (
        "Error: unknown agent 'cluade'; known: claude, codex, opencode, qwen, aider, cline, pi\n"
    )
    assert "model 'nobody' not found" in command("launch", "claude", "nobody").err
    assert "Error: not enough memory" in command("launch", "claude", "demo:chat", "--ram", "1MiB").err
    monkeypatch.setenv("MOEINF_HOME", str(home))  # whose model calls no tools
    done = command("launch", "qwen")
    assert done.code == 2 and "launch needs the name of a model that calls tools; stored here: demo" in done.err
    monkeypatch.setenv("PATH", "/nowhere")
    done = command("launch", "codex")
    assert done == Done(1, "", "Error: Codex is not installed: `npm install -g @openai/codex` does that\n")
