"""`pull` where the size of the model is asked for: stores the checkpoint as it is, and a fitted copy of it."""

from __future__ import annotations

import sys
from dataclasses import replace

from moeinf.bench.divergence.fitting import fitted
from moeinf.config import RuntimeConfig
from moeinf.config.compare_options import CompareOptions
from moeinf.config.environment import store_home
from moeinf.config.fit_options import FitOptions, fit_tag, wanted_bytes
from moeinf.config.pull_options import PullOptions
from moeinf.config.user_text import text_of
from moeinf.engine.reporting import Reporting
from moeinf.errors import UsageError
from moeinf.pull.pull import pull
from moeinf.store.naming.names import full_name, has_tag, parse_name
from moeinf.terminal.progress import LoadBar, StatusLine
from moeinf.terminal.pull_progress import PullDisplay
from moeinf.terminal.screen import can_draw
from moeinf.terminal.user_notes import say


def fit_pull(source: str, options: PullOptions, fit: FitOptions, *, dry_run: bool, quiet: bool) -> None:
    """Raises as `pull` and `fitted`, and UsageError for options that say nothing here."""
    for flag, given in (
        ("--quant-experts", options.quant_experts),
        ("--quant-dense", options.quant_dense),
        ("--dry-run", dry_run),
        ("--also", options.also),
        ("--repack", options.repack),
    ):
        if given:
            raise UsageError(f"{flag} does not go with a size or a number of bits; leave it out")
    text, home = text_of("--text", fit.text), store_home()
    compared = CompareOptions(fit.text, fit.tokens, min(512, fit.tokens))
    with PullDisplay(sys.stderr, quiet=quiet) as display:
        whole = pull(source, replace(options, quant=None, name=None), home=home, progress=display)
    word, tag = parse_name(options.name or whole.name)
    own = options.name is not None and has_tag(options.name)
    name = full_name(f"{word}:{tag if own else fit_tag(options.quant, fit)}")
    if name == whole.name:
        raise UsageError(f"{name} is the model that is fitted; give its copy another --name")
    most_bytes = wanted_bytes(options.quant, fit, whole.manifest.info.num_params)
    line = StatusLine(sys.stderr, enabled=can_draw(sys.stderr) and not quiet)

    def told(text: str) -> None:
        if not quiet:
            line.clear()
            say(text)

    reporting = Reporting(told, progress=LoadBar(line, "loading"), step=line.show)
    with PullDisplay(sys.stderr, quiet=quiet) as display:
        try:
            made = fitted(whole, most_bytes, name, text, compared, RuntimeConfig(), reporting, display)
        finally:
            line.clear()
    if not quiet:
        say(f"stored as {made.name}; {whole.name} stays, and `moeinf rm {whole.name}` frees what it takes")
        print("success", file=sys.stderr)
