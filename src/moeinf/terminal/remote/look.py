"""Whether a server of this machine has a model loaded. Loads next to nothing, as most runs find none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeinf.config import RuntimeConfig
from moeinf.config.environment import api_key, server_address
from moeinf.engine.stored.facts import config as config_json
from moeinf.errors import MoeinfError
from moeinf.models.family import family_of
from moeinf.terminal.remote.client import NoServerError, ServerClient
from moeinf.terminal.user_notes import say

if TYPE_CHECKING:
    from moeinf.store.library import StoredModel
    from moeinf.terminal.remote.remote_model import RemoteModel

_CONNECT_S, _LOOK_S = 0.1, 1.0  # a port where nobody listens refuses at once


def loaded_on_server(stored: StoredModel, config: RuntimeConfig) -> RemoteModel | None:
    """The model, where a server of this machine has it loaded as `config` asks; None where it is not so.

    A run that is to be recorded answers itself: the server records what it was told to.
    Raises UsageError where MOEINF_HOST is no address.
    """
    if config.recording.trace:
        return None
    client = ServerClient(server_address(), api_key(), connect_s=_CONNECT_S)
    if not client.loopback:  # prompts stay on this machine
        return None
    try:
        models = client.ask("GET", "/api/ps", timeout_s=_LOOK_S)["models"]
    except NoServerError:
        return None
    except MoeinfError as error:
        say(f"note: the server at {client.url} is not used: {error}")
        return None
    for told in models:
        fits = config.given() in ({}, told["moeinf"]["config"])
        alike = told["digest"].startswith(stored.own_id)  # whatever goes with the name is in it
        if fits and alike and family_of(config_json(stored)).encoder_input is None:
            from moeinf.terminal.remote.remote_model import RemoteModel

            return RemoteModel(client, stored, told)
    return None
