"""Runs a coding agent on a model of a server, which is started for it where none can answer."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from moeinf.config import RuntimeConfig
from moeinf.config.environment import api_key
from moeinf.engine.stored.facts import StoredFacts
from moeinf.errors import MoeinfError, UsageError
from moeinf.store.library import StoredModel
from moeinf.terminal.agents.known_agents import AGENTS, Agent, Served
from moeinf.terminal.progress import LoadBar, StatusLine
from moeinf.terminal.remote.client import ServerClient
from moeinf.terminal.remote.look import load_there, model_on_server, server_here
from moeinf.terminal.remote.start_server import start_server
from moeinf.terminal.screen import can_draw
from moeinf.terminal.user_notes import say
from moeinf.types import JsonMapping

_NO_KEY: Final = "moeinf"  # agents want one, also where the server does not
_ANSWER_TOKENS: Final = 2048  # that a first prompt should leave room for
_END_S: Final = 5.0


def wanted_agent(name: str) -> Agent:
    """Raises UsageError for one that is not known, MoeinfError for one that is not installed."""
    agent = AGENTS.get(name.lower())
    if agent is None:
        raise UsageError(f"unknown agent {name[:40]!r}; known: {', '.join(AGENTS)}")
    if shutil.which(agent.command) is None:
        raise MoeinfError(f"{agent.title} is not installed: `{agent.install}` does that")
    return agent


def run_agent(agent: Agent, stored: StoredModel, config: RuntimeConfig, words: Sequence[str], *, quiet: bool) -> int:
    """Returns the exit code of the agent. words: further ones for it."""
    model = stored.name.removesuffix(":latest")
    if "tools" not in StoredFacts(stored).capabilities:
        say(f"note: the chat template of {model} knows no tools, which most agents cannot do without")
    with (
        tempfile.TemporaryDirectory(prefix="moeinf-") as folder,
        _serving(stored, config, Path(folder) / "serve.log", agent.title, quiet=quiet) as (client, loaded),
    ):
        context = _context_of(loaded)
        if context < agent.tokens + _ANSWER_TOKENS:
            all_of_it = context >= stored.manifest.info.context_length
            remedy = "all that it has: choose another model" if all_of_it else "--num-ctx gives it more"
            say(
                f"note: the first prompt of {agent.title} has about {agent.tokens} tokens, and the context of {model} "
                f"{context}; {remedy}"
            )
        telling = agent.tell(Served(client.url, api_key() or _NO_KEY, model, context, Path(folder)))
        if not quiet:
            how = "variables and options" if telling.words else "variables"
            say(f"{agent.title} gets {model}, with a context of {context}, by {how} of this run alone")
        environment = {name: text for name, text in os.environ.items() if name not in telling.unset}
        command = shutil.which(agent.command) or agent.command
        return _run([command, *telling.words, *words], environment | dict(telling.variables))


@contextmanager
def _serving(
    stored: StoredModel, config: RuntimeConfig, log: Path, title: str, *, quiet: bool
) -> Iterator[tuple[ServerClient, JsonMapping]]:
    """A server with the model loaded, and what it tells of it; one that is started here ends with this."""
    line = StatusLine(sys.stderr, enabled=can_draw(sys.stderr) and not quiet)
    bar = LoadBar(line, f"loading {stored.name}")
    line.show(f"loading {stored.name}")
    here = server_here()
    try:
        found = None if here is None else model_on_server(here, stored, config, None, bar)
    finally:
        line.clear()
    if here is not None and found is not None:
        if not quiet:
            say(f"using the server at {here.url}")
        yield here, found.told
        return
    words = ["--host", "127.0.0.1", "--port", "0", "--keep-alive", "-1"]
    server = start_server(words, config, log, ends_with_us=True)
    try:
        client = ServerClient(server.url, api_key())
        line.show(f"loading {stored.name}")
        try:
            loaded = load_there(client, stored, None, bar)
        finally:
            line.clear()
        if not quiet:
            say(f"started a server at {server.url}, which ends with {title}")
        yield client, loaded
    finally:
        server.end()


def _context_of(loaded: JsonMapping) -> int:
    """The longest context that the server gives the model."""
    longest: int = loaded["moeinf"].get("longest_context") or loaded["context_length"]
    return longest


def _run(words: Sequence[str], environment: dict[str, str]) -> int:
    """Runs a program on this terminal; Ctrl-C is for it alone. Ends it where this process is to end."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        # SIGINT is ignored by a child whose parent does, unless the child says otherwise.
        process = subprocess.Popen(words, env=environment, preexec_fn=lambda: signal.signal(signal.SIGINT, before))
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code
