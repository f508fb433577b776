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
use, 130 after Ctrl-C. Many options can also be set by [variables](#variables).

The prompt of `run` is standard input (unless that is a terminal), then `--file`, then the words, joined by one space;
newlines at the end of the first two are dropped. An empty word (`moeinf run demo ""`) only loads the model.
In a chat, `/?` lists the commands; a message in triple quotes may have many lines.

What a model thinks before it answers is told apart by the tags of its chat template, or by gpt-oss's channels. A
terminal shows it in grey (unless `--hidethinking`), a pipe never gets it, `--json` has it in a field of its own, and
whether the model is reminded of it is up to the template. `--think` (or `--think=true`), `--think=false`,
`--think=low`, `medium` or `high` and, in a chat, `/set think [level]` and `/set nothink` set the variables that the
template reads for it; one that reads none is an error. Stop strings are not looked for in thoughts.

An answer that was cut, by a full context or by `--num-predict`, is followed by a note.
"""
VARIABLES = """\
## Variables

What counts, first to last: the flag, `-o`, the variable, the checkpoint's generation_config.json, the default.
A variable that begins with `MOEINF_` and is none of these changes nothing; a note says so.

| variable | sets |
|---|---|
"""


COLUMNS = """\
## Columns of bench

`-o csv`, `json` and `jsonl` have these; `md` and the table have some of them, under shorter names. Reads past the page
cache (`--direct-io`, the default) leave it no part in the cold request; without, the kernel is asked to forget the
experts before, and a note says so.

| column | meaning |
|---|---|
"""


def columns() -> str:
    from moeinf.bench.columns import COLUMNS as MEANINGS

    return COLUMNS + "".join(f"| `{name}` | {meaning} |\n" for name, meaning in MEANINGS.items())


def variables() -> str:
    from typer.main import get_command

    from moeinf.cli import app
    from moeinf.config import OTHER_VARIABLES, flag, runtime_fields, variable
    from moeinf.generate.sampling import option_kinds

    verbs = get_command(app).commands  # type: ignore[attr-defined]
    flags = {verb: [param.name for param in verbs[verb].params] for verb in ("run", "bench")}
    rows = {}
    for name in (*runtime_fields(), *option_kinds()):
        takers = [f"`{verb}`" for verb, names in flags.items() if name in names]
        rows[variable(name)] = f"`{flag(name)}` of {' and '.join(takers)}" if takers else f"`-o {name}=` of `run`"
    rows |= OTHER_VARIABLES
    return VARIABLES + "".join(f"| `{name}` | {text} |\n" for name, text in rows.items())


def render() -> str:
    from moeinf.cli import run_command

    sections = [HEAD]
    for verb in ("", *VERBS):
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            run_command([word for word in (verb, "--help") if word])
        sections.append(f"## moeinf {verb}".rstrip() + f"\n\n```\n{text.getvalue().strip()}\n```\n")
    return "\n".join([*sections, columns(), variables()])


if __name__ == "__main__":
    os.environ["COLUMNS"] = "100"
    (Path(__file__).parent / "cli.md").write_text(render(), encoding="utf-8")
