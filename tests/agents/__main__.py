"""python -m tests.agents [--only NAME,...] [--model NAME] [--record FOLDER]: does each agent edit a file as asked?

Each is installed into build/agents and has a repository and a home of its own. Its model says what a script has for
it, so that its protocol is what is tried; with --model it is one of the store, whose wit is tried as well. The exit
code is that of a failure where an agent has not finished with a script.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moeinf.config import RuntimeConfig
from moeinf.config.environment import store_home
from moeinf.pull.pull import pull
from moeinf.store.library import Library
from tests.support.agents.coding_agents import AFTER, AGENTS, BEFORE, FILE, CodingAgent
from tests.support.agents.recorded_requests import Asked, recorded, shortened, write_fixture
from tests.support.agents.scripted_model import write_script
from tests.support.live_server import live_server

ROOT = Path(__file__).resolve().parents[2]
SCRIPTED = "scripted"


@dataclass(frozen=True)
class Outcome:
    """code: of the process; None where it did not end in time. said: the end of what it printed."""

    edited: bool
    code: int | None
    seconds: float
    tokens: dict[str, int]
    asked: list[Asked]
    said: str

    @property
    def finished(self) -> bool:
        return self.edited and self.code == 0

    def told(self) -> str:
        ended = "did not end in time" if self.code is None else f"exit code {self.code}"
        done = "finished" if self.finished else f"NOT finished ({'edited' if self.edited else 'not edited'}, {ended})"
        tokens = f"{self.tokens['prompt']} tokens read ({self.tokens['prompt_cached']} of them kept)"
        return f"{done}: {self.seconds:.0f} s, {len(self.asked)} requests, {tokens}, {self.tokens['generated']} written"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.agents")
    parser.add_argument("--only", default=",".join(AGENTS), help="names, with commas between them")
    parser.add_argument("--model", default="", help="of the store, in the place of a script")
    parser.add_argument("--record", type=Path, help="a folder for what each agent asks, made small")
    parser.add_argument("--seconds", type=float, default=300.0, help="that each may take")
    given = parser.parse_args()
    names = given.only.split(",")
    if unknown := set(names) - AGENTS.keys():
        parser.error(f"unknown agent {sorted(unknown)[0]!r}; known: {', '.join(AGENTS)}")
    failed = list[str]()
    for name in names:
        agent = AGENTS[name]
        programs = agent.install(ROOT / "build" / "agents" / name)
        with tempfile.TemporaryDirectory(prefix="agents-") as folder:
            outcome = _run(name, agent, programs, Path(folder), given)
            if given.record:
                _record(given.record / f"{name}.json", agent, outcome.asked, Path(folder), given.model or SCRIPTED)
        print(f"{agent.package}: {outcome.told()}", flush=True)
        if not outcome.finished:
            failed.append(name)
            print(outcome.said)
    if failed and not given.model:
        raise SystemExit(f"not finished: {', '.join(failed)}")


def _run(name: str, agent: CodingAgent, programs: Path, folder: Path, given: argparse.Namespace) -> Outcome:
    repository, home = folder / "repository", folder / "home"
    repository.mkdir()
    home.mkdir()
    (repository / FILE).write_text(BEFORE)
    subprocess.run(["git", "init", "-q", repository], check=True)
    if given.model:
        store = store_home()
    else:
        store = folder / "store"
        checkpoint = folder / SCRIPTED
        script = agent.script(str(repository / FILE))
        pull(str(write_script(checkpoint, script, always=agent.always)), home=store)
    config = RuntimeConfig.of(device="cpu", prefix_disk="0")  # nothing is left in the store
    with recorded() as asked, live_server(Library(store), config=config) as server:
        kept = {
            key: text for key, text in os.environ.items() if not key.startswith(("MOEINF_", "OPENAI_", "ANTHROPIC_"))
        }
        variables = kept | {
            "HOME": str(home),
            "PWD": str(repository),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": "",
            "MOEINF_HOME": str(store),
            "MOEINF_HOST": server.url,
            "NO_PROXY": "*",
        }
        begun = time.monotonic()
        launch = [sys.executable, "-m", "moeinf", "launch", name, given.model or SCRIPTED, "--", *agent.words]
        code, said = _ended(launch, repository, variables, given.seconds)
        seconds = time.monotonic() - begun
        edited = (repository / FILE).read_text() == AFTER
        return Outcome(edited, code, seconds, _tokens(server.url), list(asked), said[-3000:])


def _ended(words: Sequence[str], folder: Path, variables: dict[str, str], seconds: float) -> tuple[int | None, str]:
    """Exit code, None for a process that had to be ended, and output."""
    process = subprocess.Popen(
        words, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=seconds)
        return process.returncode, said
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return None, said


def _tokens(url: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        text = answer.read().decode()
    found = re.findall(r'^moeinf_tokens_total\{kind="(\w+)"\} (\S+)', text, re.MULTILINE)
    return {"prompt": 0, "prompt_cached": 0, "generated": 0} | {kind: int(float(count)) for kind, count in found}


def _record(path: Path, agent: CodingAgent, asked: list[Asked], folder: Path, model: str) -> None:
    names = {f"{folder}/repository": "/repository", f"{folder}/home": "/home/user", str(folder): "/folder"}
    told = {"package": agent.package, "model": model, "always": agent.always}
    told["script"] = agent.script(f"/repository/{FILE}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_fixture(path, told, [replace(each, body=shortened(each.body, names)) for each in asked])


if __name__ == "__main__":
    if shutil.which("npm") is None:
        raise SystemExit("npm is missing: it installs most agents")
    main()
