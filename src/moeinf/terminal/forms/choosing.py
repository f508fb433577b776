"""Chooses the form of a known model for a verb, shows the others, and asks before much is fetched."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import typer

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.speed.rates import Conditions, Kind, Rates
from moeinf.forecast.forecast import KnownRates
from moeinf.forecast.form_choice import Choice, choice_among
from moeinf.pull.forms.form import Form
from moeinf.references.fetching import settled, told_what_is_here
from moeinf.references.meaning import Meaning
from moeinf.store.library import Library
from moeinf.store.naming.catalogue import KnownModel
from moeinf.terminal.forms.form_table import form_lines
from moeinf.terminal.forms.told_rates import told_rates
from moeinf.terminal.progress import StatusLine
from moeinf.terminal.screen import can_draw
from moeinf.terminal.user_notes import say
from moeinf.text.quantities import size_text

ASKED_BYTES: Final = 20e9  # to be fetched: from here on a person is asked


def chosen_form(
    found: Meaning, library: Library, config: RuntimeConfig, verb: str, *, yes: bool, quiet: bool
) -> Meaning:
    """As `settled`: of a known model with the form that the user takes.

    yes: takes the usual form without a question. Raises what `settled` raises, and Exit where the user wants none.
    """
    if found.known is None:
        return found
    line = StatusLine(sys.stderr, enabled=can_draw(sys.stderr) and not quiet)
    line.show(f"looking for {found.asked}")

    def choose(model: KnownModel, name: str, options: PullOptions) -> Form:
        choice = choice_among(model, name, options, config, library.home, _rates(config, [], line))
        line.clear()
        if quiet:
            return choice.taken.form
        say("\n".join(form_lines(choice, verb)))
        asks = sys.stdin.isatty() and sys.stderr.isatty() and not yes
        return _asked(choice) if asks and choice.taken.form.download_bytes > ASKED_BYTES else choice.taken.form

    try:
        return settled(found, library, choose)
    finally:
        line.clear()


def choice_shown(found: Meaning, library: Library, config: RuntimeConfig, doubted: list[Conditions]) -> Choice | None:
    """The forms of a known model of which one is to be chosen; None for any other meaning. doubted: as of `told_rates`.

    Raises as `choice_among`.
    """
    if found.known is None or found.tag:
        return None
    line = StatusLine(sys.stderr, enabled=can_draw(sys.stderr))
    line.show(f"looking for {found.asked}")
    try:
        with told_what_is_here(library):
            rates = _rates(config, doubted, line)
            return choice_among(found.known, found.reference, found.options, config, library.home, rates)
    finally:
        line.clear()


def _rates(config: RuntimeConfig, doubted: list[Conditions], line: StatusLine) -> KnownRates:
    """Asked of each form, while the line is shown. That they may be too low is said once."""

    def rates(kinds: Sequence[Kind]) -> Rates:
        line.clear()
        return told_rates(config, kinds, doubted=doubted)

    return rates


def _asked(choice: Choice) -> Form:
    """The form that the user takes: the usual one, or another by its tag. Raises Exit where it is none."""
    usual = choice.taken.form
    while True:
        sys.stderr.write(f"fetch {size_text(usual.download_bytes)} of {usual.tag}? [Y/n, or another tag] ")
        sys.stderr.flush()
        given = sys.stdin.readline()
        answer = given.strip().lower()
        if not given or answer in ("n", "no"):
            say("nothing was fetched")
            raise typer.Exit(1)
        if answer in ("", "y", "yes"):
            return usual
        row = choice.of_tag(answer)
        if row is not None and not row.fault:
            return row.form
        say(f"{answer!r:.50} is none of them that runs here: {', '.join(choice.tags)}")
