"""Writes docs/reference/cli.md from the help of every verb; a test checks that the page is current."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

VERBS = (
    "run",
    "pull",
    "list",
    "show",
    "rm",
    "cp",
    "create",
    "prune",
    "serve",
    "ps",
    "stop",
    "worker",
    "bench",
    "verify",
    "doctor",
    "fit",
    "trace",
    "trace show",
    "trace import",
    "trace cluster",
    "simulate",
)
HEAD = """\
# The command line

Made by `python docs/generate_cli.py` from the help of each verb; do not edit. `--help` of `run`, `bench` and `serve`
shows the options that are asked for most, `--help-all` those that are here.

Answers go to stdout; notes, progress, figures and errors go to stderr. The exit code is 0, 1 after an error, 2 after a
wrong use, and 130 after Ctrl-C, 143 after SIGTERM and 129 after SIGHUP, which all end a command in order; a second
signal ends it at once. Many options can also be set by [variables](#variables-and-names-elsewhere).

The prompt of `run` is standard input (unless that is a terminal), then `--file`, then the words, joined by one space;
newlines at the end of the first two are dropped. An empty word (`moeinf run demo ""`) only loads the model.
In a chat, `/?` lists the commands; a message in triple quotes may have many lines.

Many models think before they answer. moeinf tells thoughts from the answer by the tags in the chat template, or by the
channels of gpt-oss. A terminal shows thoughts in grey, unless `--hidethinking` is given; a pipe never gets them;
`--json` has them in a field of their own. The template decides whether the model sees them again at the next question.
Stop strings are looked for in the answer only.

Whether and how hard to think is said with `--think` (the same as `--think=true`), `--think=false`, or one of the levels
`--think=low`, `--think=medium` and `--think=high`; in a chat, with `/set think`, `/set think LEVEL` and `/set nothink`.
This sets the variables that the chat template reads for it. It is an error where the template reads none.

`--format json` makes the answer a JSON object, and `--format` with a JSON schema, or with `@FILE` that holds one, makes
it valid for that schema; in a chat, `/set format` and `/set noformat` do. Only tokens that go on so are drawn, by
[llguidance](https://github.com/guidance-ai/llguidance); a feature of schemas that it lacks is an error. Thoughts are
free. The model is not told of the schema, so ask for JSON in the prompt, too. `--num-predict`, a full context, stop
strings and Ctrl-C may cut the JSON short.

A note on stderr follows an answer that was cut: by a full context, by `--num-predict`, or at the longest length that
the checkpoint sets.

While other programs need memory, a model on the CPU gives a part of its expert cache back, down to the experts of one
token; a note says so the first time. Only the speed changes.
"""
VARIABLES = """\
## Variables, and names elsewhere

An option may be given in several places. The first of these that has it counts: the flag, `-o`, the variable, the
checkpoint's generation_config.json, the default. A variable whose name begins with `MOEINF_` and is not in this table
changes nothing, and a note says so.

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


def variables() -> str:
    from typer.main import get_command

    from moeinf.cli import app
    from moeinf.config import RuntimeConfig
    from moeinf.config.environment import OTHER_VARIABLES
    from moeinf.config.option import options
    from moeinf.sampling.params import SamplingParams

    verbs = get_command(app).commands  # type: ignore[attr-defined]
    flags = {verb: [param.name for param in verbs[verb].params] for verb in ("run", "bench")}
    rows = {}
    for option in (*options(RuntimeConfig), *options(SamplingParams)):
        takers = " and ".join(f"`{verb}`" for verb, names in flags.items() if option.name in names)
        sets = f"`{option.flag}` of {takers}" if option.flag else option.help
        apis = [f"`{option.ollama}`" if option.ollama else "", ", ".join(f"`{name}`" for name in option.openai)]
        rows[option.variable] = [sets, *apis]
    rows |= {name: [text, "", ""] for name, text in OTHER_VARIABLES.items()}
    return VARIABLES + "".join(f"| `{name}` | {' | '.join(cells)} |\n" for name, cells in rows.items())


def render() -> str:
    from moeinf.cli import run_command
    from moeinf.terminal.arguments.short_help import SHOWN

    sections = [HEAD]
    for verb in ("", *VERBS):
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            run_command([*verb.split(), "--help-all" if verb in SHOWN else "--help"])
        sections.append(f"## moeinf {verb}".rstrip() + f"\n\n```\n{text.getvalue().strip()}\n```\n")
    return "\n".join([*sections, columns(), variables()])


if __name__ == "__main__":
    os.environ["COLUMNS"] = "100"
    (Path(__file__).parent / "reference" / "cli.md").write_text(render(), encoding="utf-8")
