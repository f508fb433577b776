"""Writes docs/cli.md from the --help of every verb; a test checks that the page is current."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

VERBS = ("run", "pull", "list", "show", "rm", "bench", "verify", "simulate")
HEAD = """\
# The command line

Made by `python docs/generate_cli.py` from the `--help` of each verb; do not edit.

Answers go to stdout; notes, progress, figures and errors go to stderr. Exit codes: 0, 1 for an error, 2 for a wrong
use, 130 after Ctrl-C. Every option of `run` and `bench` about memory, and every sampling option, can also be set by a
variable: `MOEINF_EXPERT_CACHE`, `MOEINF_TEMPERATURE` and so on. What counts, first to last: the flag, the variable, the
checkpoint's generation_config.json, the default. `MOEINF_HOME` is the folder of the store, `MOEINF_NOHISTORY=1` keeps
no history of the chat, `MOEINF_DEBUG=1` shows tracebacks.

The prompt of `run` is standard input (unless that is a terminal), then `--file`, then the words, joined by one space;
newlines at the end of the first two are dropped. An empty word (`moeinf run demo ""`) only loads the model.
In a chat, `/?` lists the commands; a message in triple quotes may have many lines.
"""


def render() -> str:
    from moeinf.cli import run_command

    sections = [HEAD]
    for verb in ("", *VERBS):
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            run_command([word for word in (verb, "--help") if word])
        sections.append(f"## moeinf {verb}".rstrip() + f"\n\n```\n{text.getvalue().strip()}\n```\n")
    return "\n".join(sections)


if __name__ == "__main__":
    os.environ["COLUMNS"] = "100"
    (Path(__file__).parent / "cli.md").write_text(render(), encoding="utf-8")
