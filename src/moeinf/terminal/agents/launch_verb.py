"""`moeinf launch`: a coding agent on a model here. Heavy imports are inside the verb."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.terminal.agents.known_agents import AGENTS
from moeinf.terminal.arguments.flags import with_flags
from moeinf.terminal.arguments.named import Quant, Quiet
from moeinf.terminal.arguments.shell_completion import model_names
from moeinf.terminal.arguments.short_help import words_behind_dashes

if TYPE_CHECKING:
    from moeinf.store.library import StoredModel


def _agent_names(incomplete: str) -> list[str]:
    return [name for name in AGENTS if name.startswith(incomplete)]


@with_flags()
def launch(
    ctx: typer.Context,
    agent: Annotated[
        str, typer.Argument(metavar="AGENT", help=f"One of {', '.join(AGENTS)}.", autocompletion=_agent_names)
    ],
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="What `moeinf run` takes. [default: the newest that calls tools]",
            autocompletion=model_names,
        ),
    ] = "",
    *,
    config: RuntimeConfig,
    quant: Quant = None,
    quiet: Quiet = False,
) -> None:
    """Start a coding agent on a model here, with a server for it.

    A server that runs on this machine answers it, unless options of the model are given; else one is started, and ended
    with the agent. The agent is told by variables and options of this one run: no file of yours is changed. What
    follows `--` is passed on to it.
    """
    from moeinf.terminal.agents.running_agent import run_agent, wanted_agent
    from moeinf.terminal.session_opening import ensure_stored

    chosen = wanted_agent(agent)
    stored = ensure_stored(model, PullOptions(quant=quant), quiet=quiet) if model else _newest(quiet=quiet)
    raise typer.Exit(run_agent(chosen, stored, config, words_behind_dashes(ctx), quiet=quiet))


def _newest(*, quiet: bool) -> StoredModel:
    """The model that was stored last of those that call tools; the toy comes last. Raises UsageError for none."""
    from moeinf.config.environment import store_home
    from moeinf.engine.stored.facts import StoredFacts
    from moeinf.errors import UsageError
    from moeinf.store.library import Library
    from moeinf.terminal.arguments.first_steps import first_steps
    from moeinf.terminal.user_notes import say

    able = [each for each in Library(store_home()).list() if "tools" in StoredFacts(each).capabilities]
    able.sort(key=lambda each: each.manifest.source.kind == "embedded")
    if not able:
        raise UsageError(f"launch needs the name of a model that calls tools; {first_steps()}")
    if not quiet:
        say(f"note: no model was named; this is {able[0].name.removesuffix(':latest')}, the newest that calls tools")
    return able[0]
