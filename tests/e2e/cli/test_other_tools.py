"""What is told of other tools' options names options that there are, for verbs that lack the other one."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer

from moeinf.cli import app
from moeinf.terminal.arguments.other_tools import _CURES, cure_of

COMMANDS: Any = typer.main.get_command(app)
OPTIONS = {
    verb: {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    for verb, command in COMMANDS.commands.items()
}
EVERY = set[str]().union(*OPTIONS.values())


@pytest.mark.parametrize(("options", "needed", "cure"), _CURES)
def test_a_cure_names_options_that_there_are(options: str, needed: str, cure: str) -> None:
    assert not needed or needed in EVERY
    assert set(re.findall(r"--[a-z-]+", cure)) <= EVERY
    for option in options.split():
        telling = [verb for verb, known in OPTIONS.items() if option not in known and cure_of(option, known)]
        assert telling, f"nobody is ever told of {option}"


def test_no_option_has_two_cures() -> None:
    every = [option for options, _, _ in _CURES for option in options.split()]
    assert len(every) == len(set(every))
