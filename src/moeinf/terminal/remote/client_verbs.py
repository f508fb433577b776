"""The verbs that ask a running server: ps and stop. Heavy imports are inside the verbs."""

from __future__ import annotations

from typing import Annotated

import typer

from moeinf.config.environment import api_key, server_address
from moeinf.terminal.arguments.named import AsJson, ServerHost
from moeinf.terminal.screen import print_fitted, print_harmless


def ps(host: ServerHost = None, json: AsJson = False) -> None:
    """Show which model a running server has loaded."""
    from json import dumps

    from moeinf.terminal.remote.client import ServerClient
    from moeinf.terminal.remote.running import running_lines, running_models

    models = running_models(ServerClient(host or server_address(), api_key()))
    if json:
        print_harmless(dumps(models, indent=2))
    else:
        print_fitted("\n".join(running_lines(models)))


def stop(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model that is loaded.")], host: ServerHost = None
) -> None:
    """Have a running server close a model, once its answer has ended."""
    from moeinf.terminal.remote.client import ServerClient
    from moeinf.terminal.remote.running import stop_model

    stop_model(ServerClient(host or server_address(), api_key()), model)
