"""Of several stored forms of one model the one that a person takes, or the best where nobody is asked."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from moeinf.forecast.format_quality import divergence_text
from moeinf.references.stored_forms import bits_of, usual_of
from moeinf.store.library import StoredModel
from moeinf.store.naming.catalogue import known_form
from moeinf.store.naming.names import DEFAULT_TAG
from moeinf.terminal.screen import table
from moeinf.terminal.user_notes import say
from moeinf.text.quantities import size_text


def chosen_stored(asked: str, forms: Sequence[StoredModel], *, yes: bool, quiet: bool) -> StoredModel:
    """The stored form that the user takes of `forms`, the best first; the first of a pipe, which is told so.

    yes: without a question. Raises Exit where the user wants none.
    """
    if yes or quiet or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return usual_of(asked, forms, (lambda line: None) if quiet else say)
    say("\n".join([f"stored forms of {asked}:", *table(_rows(forms), 2)]))
    while True:
        sys.stderr.write(f"which? [{forms[0].name}, or another name, its tag or number; n for none] ")
        sys.stderr.flush()
        given = sys.stdin.readline()
        answer = given.strip().lower()
        if not given or answer in ("n", "no", "none"):
            say("nothing was run")
            raise typer.Exit(1)
        taken = forms[0] if answer in ("", "y", "yes") else _named(answer, forms)
        if taken is not None:
            return taken
        say(f"{answer!r:.50} is none of them")


def _rows(forms: Sequence[StoredModel]) -> list[list[str]]:
    rows = [["", "NAME", "SIZE", "BITS", "KL"]]
    for number, form in enumerate(forms, 1):
        kl = divergence_text(_tag(form))
        rows.append([str(number), form.name, size_text(form.size_bytes), f"{bits_of(form):.1f}", kl])
    return rows


def _tag(form: StoredModel) -> str:
    """The tag that its name ends in."""
    known = known_form(form.name)
    return known[1] if known else ""


def _named(answer: str, forms: Sequence[StoredModel]) -> StoredModel | None:
    """The form whose name, tag or number this is."""
    for number, form in enumerate(forms, 1):
        if answer in (form.name.lower(), form.name.lower().removesuffix(f":{DEFAULT_TAG}"), _tag(form), str(number)):
            return form
    return None
