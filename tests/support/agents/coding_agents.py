"""Coding agents: what installs each, how it is asked for something without a terminal, and what a model has to say so
that it edits a file.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.agents.scripted_model import call
from tests.support.pythons.interpreters import interpreters

FILE, BEFORE, AFTER = "greet.py", 'print("Helo")\n', 'print("Hello")\n'
TASK = f"The greeting in {FILE} is misspelt. Read the file, then change Helo to Hello in it, and nothing else."
DONE = "The greeting is spelt right now."
_AIDER_PYTHONS = ((3, 12), (3, 11), (3, 10))  # of which its pinned packages have wheels


@dataclass(frozen=True)
class CodingAgent:
    """package: of npm, or of PyPI where python says so. words: behind those of `moeinf launch`. script: what a model
    says, in turns, for the path of the file. always: it gives no tools, and reads edits from text.
    """

    package: str
    words: Sequence[str]
    script: Callable[[str], Sequence[str]]
    python: bool = False
    always: bool = False

    def install(self, folder: Path) -> Path:
        """Installs it into a folder of its own, unless it is there; returns the folder of its command."""
        programs = folder / ("bin" if self.python else "node_modules/.bin")
        done = folder / self.package.replace("/", "-")
        if done.exists():
            return programs
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if self.python:
            found = interpreters()
            python = next((found[version] for version in _AIDER_PYTHONS if version in found), None)
            if python is None:
                raise SystemExit(f"{self.package} needs a Python from 3.10 to 3.12")
            subprocess.run([python, "-m", "venv", folder], check=True)
            subprocess.run([programs / "python", "-m", "pip", "install", "-q", self.package], check=True)
        else:
            subprocess.run(["npm", "install", "--silent", "--prefix", folder, self.package], check=True, cwd=folder)
        done.touch()
        return programs


AGENTS: Mapping[str, CodingAgent] = {
    "claude": CodingAgent(
        "@anthropic-ai/claude-code@2.1.197",
        ("-p", TASK, "--allowedTools", "Read,Edit"),
        lambda path: [
            call("Read", {"file_path": path}),
            call("Edit", {"file_path": path, "old_string": "Helo", "new_string": "Hello"}),
            DONE,
        ],
    ),
    "codex": CodingAgent(
        "@openai/codex@0.171.0",
        ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK),
        lambda path: [
            call("exec_command", {"cmd": f"cat {path}"}),
            call("exec_command", {"cmd": f"sed -i s/Helo/Hello/ {path}"}),
            DONE,
        ],
    ),
    "opencode": CodingAgent(
        "opencode-ai@1.18.33",
        ("run", TASK),
        lambda path: [
            call("read", {"filePath": path}),
            call("edit", {"filePath": path, "oldString": "Helo", "newString": "Hello"}),
            DONE,
        ],
    ),
    "qwen": CodingAgent(
        "@qwen-code/qwen-code@0.15.10",
        ("--approval-mode", "yolo", TASK),
        lambda path: [
            call("read_file", {"file_path": path}),
            call("edit", {"file_path": path, "old_string": "Helo", "new_string": "Hello"}),
            DONE,
        ],
    ),
    "aider": CodingAgent(
        "aider-chat==0.86.2",
        ("--yes-always", "--no-git", "--analytics-disable", "--message", TASK, FILE),
        lambda path: [f"{FILE}\n```\n{AFTER}```\n"],
        python=True,
        always=True,
    ),
    "cline": CodingAgent(
        "cline@3.0.65",
        ("--auto-approve", "true", TASK),
        lambda path: [
            call("read_files", {"files": [{"path": path}]}),
            call("editor", {"path": path, "old_text": "Helo", "new_text": "Hello"}),
            DONE,
        ],
    ),
    "pi": CodingAgent(
        "@mariozechner/pi-coding-agent@0.73.1",
        ("--offline", "-p", TASK),
        lambda path: [
            call("read", {"path": path}),
            call("edit", {"path": path, "edits": [{"oldText": "Helo", "newText": "Hello"}]}),
            DONE,
        ],
    ),
}
