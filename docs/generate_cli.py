"""Writes docs/reference/cli.md from the help of every verb; a test checks that the page is current."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

from moeinf.config import RuntimeConfig
from moeinf.config.environment import OTHER_VARIABLES
from moeinf.config.option import options
from moeinf.config.server_options import ServerOptions
from moeinf.sampling.params import SamplingParams

HEAD = """\
# The command line: every command and option

This page is for those who look up a command, an option, a variable or a column of `bench`. After the general rules it
has the help of every command, word for word; `--help-all` prints the same. `python docs/generate_cli.py` writes this
page; do not edit it.

## Output and exit codes

Answers go to stdout; notes, progress, figures and errors go to stderr. The exit code is 0, 1 after an error, 2 after a
wrong use, and 130 after Ctrl-C, 143 after SIGTERM and 129 after SIGHUP, which all end a command in order; a second
signal ends it at once. Many options can also be set by [variables](#variables-and-names-elsewhere).

[using.md](../using.md) explains prompts, chats, JSON answers and names; [tools.md](../tools.md) explains thinking and
tool calls, and [sampling.md](../sampling.md) how tokens are drawn.
"""
VARIABLES = """\
## Variables, and names elsewhere

An option may be given in several places. The first of these that has it counts: the flag, `-o`, the variable, the
checkpoint's generation_config.json, the default. A variable whose name begins with `MOEINF_` and is not in this table
changes nothing, and a note says so. `MOEINF_HOST` also says where `run`, `ps` and `stop` look for a server.

`-o` and, in a chat, `/set parameter` take the names that ollama gives to options. The last column has the names of the
same options in requests of the OpenAI API.

| variable | sets | `-o`, `/set parameter` | OpenAI |
|---|---|---|---|
"""


COLUMNS = """\
## Columns of bench

`-o csv`, `-o json` and `-o jsonl` print these columns; `-o md` and the table print some of them, under shorter names.
The cold request reads the experts from the disk: by default (`--direct-io`) reads go past the page cache, and with
`--no-direct-io` the kernel is asked to forget the experts first, which a note says.

| column | meaning |
|---|---|
"""


def columns() -> str:
    from moeinf.bench.columns import COLUMNS as MEANINGS

    return COLUMNS + "".join(f"| `{name}` | {meaning} |\n" for name, meaning in MEANINGS.items())


TAKERS = {  # verbs whose options of these groups have variables
    RuntimeConfig: ("run", "serve", "bench", "fit", "worker"),
    ServerOptions: ("serve",),
    SamplingParams: ("run",),
}


def variables() -> str:
    from typer.main import get_command

    from moeinf.cli import app

    known = get_command(app).commands  # type: ignore[attr-defined]
    flags = {
        name: {flag for param in known[name].params for flag in param.opts}
        for names in TAKERS.values()
        for name in names
    }
    rows = {}
    for group, names in TAKERS.items():
        for option in options(group):
            takers = [f"`{name}`" for name in names if option.flag in flags[name]]
            sets = f"`{option.flag}` of {', '.join(takers)}" if option.flag else option.help
            apis = [f"`{option.ollama}`" if option.ollama else "", ", ".join(f"`{name}`" for name in option.openai)]
            rows[option.variable] = [sets, *apis]
    rows |= {name: [text, "", ""] for name, text in OTHER_VARIABLES.items()}
    return VARIABLES + "".join(f"| `{name}` | {' | '.join(cells)} |\n" for name, cells in rows.items())


def verbs() -> Iterator[str]:
    """The command itself, then every verb, and behind `trace` those that follow it."""
    from typer.main import get_command

    from moeinf.cli import app

    yield ""
    for name, verb in get_command(app).commands.items():  # type: ignore[attr-defined]
        if not verb.hidden:
            yield name
            yield from (f"{name} {each}" for each in getattr(verb, "commands", {}))


def render() -> str:
    from moeinf.cli import run_command
    from moeinf.terminal.arguments.short_help import SHOWN

    sections = [HEAD]
    for verb in verbs():
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            run_command([*verb.split(), "--help-all" if verb in SHOWN else "--help"])
        sections.append(f"## moeinf {verb}".rstrip() + f"\n\n```\n{text.getvalue().strip()}\n```\n")
    return "\n".join([*sections, columns(), variables()])


if __name__ == "__main__":
    os.environ["COLUMNS"] = "100"
    (Path(__file__).parent / "reference" / "cli.md").write_text(render(), encoding="utf-8")
