"""Records docs/chat.svg: a chat with the embedded model, a third of whose experts are in memory, as a moving picture.

Needs pexpect and pyte, which the tests bring. Run: python -m docs.record_chat
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pexpect

from docs.terminal_recording import COLUMNS, Terminal, picture

HERE = Path(__file__).parent
ROWS = 27
TITLE = "A chat with the embedded model, a third of whose experts are in memory"
COMMAND = "moeinf run demo:chat --expert-cache 33% --seed 3 --verbose"
MESSAGE = "Tell me of a ship and the sea."


def asks(last: str) -> bool:
    return last.startswith(">>> Send")


def recorded() -> Terminal:
    screen = Terminal(ROWS)
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "MOEINF_HOME": home, "TERM": "xterm-256color"}
        moeinf = [sys.executable, "-m", "moeinf"]
        subprocess.run([*moeinf, "pull", "demo:chat"], env=environment, check=True, capture_output=True)
        screen.type(f"$ {COMMAND}")
        screen.type("\r\n")
        words = [*moeinf, *COMMAND.split()[1:]]
        screen.child = pexpect.spawn(words[0], words[1:], env=environment, dimensions=(ROWS, COLUMNS))
        screen.look(30, until=asks)
        screen.look(1)
        screen.type(MESSAGE)
        screen.type("\r")
        screen.look(1)
        screen.look(30, until=asks)
        screen.child.close(force=True)
    return screen


if __name__ == "__main__":
    (HERE / "chat.svg").write_text(picture(recorded(), TITLE), encoding="utf-8")
