"""Records docs/agent.svg: pi mends a file on a model of the store, as a moving picture.

Needs pexpect and pyte, which the tests bring, npm, and minutes. Run: python -m docs.record_agent MODEL
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pexpect

from docs.terminal_recording import COLUMNS, Line, Terminal, picture
from moeinf.config.environment import store_home
from tests.support.agents.coding_agents import AGENTS, BEFORE, FILE

HERE = Path(__file__).parent
ROWS = 40
LONGEST_S = 1.5
TITLE = f"pi reads a file and mends a word of it, on {{}}. Pauses of more than {LONGEST_S} s are shortened."
TASK = f"Please read {FILE}. Then use the edit tool once to replace Helo with Hello."


def prompts(screen: Terminal) -> bool:
    return screen.display[screen.cursor.y].rstrip() == "$"


def works(screen: Terminal) -> bool:
    return any("Working..." in line for line in screen.display)


def run(screen: Terminal, command: str, until: Callable[[Terminal], bool], seconds: float = 20) -> None:
    screen.type(command)
    screen.look(1)
    screen.look(seconds, lambda _: until(screen))


def without_turns(frames: list[tuple[float, list[Line]]]) -> list[tuple[float, list[Line]]]:
    """The same without the mark that turns while the agent works, so that pauses are some."""
    found: list[tuple[float, list[Line]]] = []
    for at, lines in frames:
        still = [tuple((re.sub("[\u2800-\u28ff]", "*", text), grey) for text, grey in line) for line in lines]
        if not found or found[-1][1] != still:
            found.append((at, still))
    return found


def recorded(model: str) -> Terminal:
    screen = Terminal(ROWS)
    programs = AGENTS["pi"].install(HERE.parent / "build" / "agents" / "pi")
    with tempfile.TemporaryDirectory() as folder:
        home, repository = Path(folder) / "home", Path(folder) / "project"
        home.mkdir()
        repository.mkdir()
        (repository / FILE).write_text(BEFORE)
        subprocess.run(["git", "init", "-q", repository], check=True)
        environment = os.environ | {
            "HOME": str(home),
            "MOEINF_HOME": str(store_home()),
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TERM": "xterm-256color",
            "PS1": "$ ",
        }
        screen.child = pexpect.spawn(
            "bash", ["--norc", "--noprofile"], cwd=repository, env=environment, dimensions=(ROWS, COLUMNS)
        )
        screen.look(5, lambda _: prompts(screen))
        run(screen, f"cat {FILE}\r", prompts)
        run(screen, f"moeinf launch pi {model} -- --offline {shlex.quote(TASK)}\r", works, 300)
        screen.rest(10)  # while the agent works, a mark of it turns
        run(screen, "\x04", prompts)
        run(screen, f"cat {FILE}\r", prompts)
        screen.child.close(force=True)
    screen.frames = without_turns(screen.frames)
    return screen


if __name__ == "__main__":
    model = sys.argv[1]
    drawn = recorded(model)
    print("\n".join(drawn.display))
    (HERE / "agent.svg").write_text(picture(drawn, TITLE.format(model), LONGEST_S), encoding="utf-8")
