"""Whether a server of this machine can answer for a model. Loads next to nothing, as most runs find none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeinf.config import RuntimeConfig
from moeinf.config.environment import api_key, server_address
from moeinf.config.server_options import seconds_of
from moeinf.engine.stored.facts import config as config_json
from moeinf.engine.stored.preset import preset_of
from moeinf.errors import MoeinfError
from moeinf.models.family import family_of
from moeinf.terminal.progress import LoadBar
from moeinf.terminal.remote.client import NoServerError, ServerClient
from moeinf.terminal.user_notes import say
from moeinf.types import JsonObject

if TYPE_CHECKING:
    from moeinf.store.library import StoredModel
    from moeinf.terminal.remote.remote_model import RemoteModel

_CONNECT_S, _LOOK_S = 0.1, 1.0  # a port where nobody listens refuses at once


def server_here() -> ServerClient | None:
    """The server of this machine, unless nobody answers. Raises UsageError where MOEINF_HOST is no address."""
    client = ServerClient(server_address(), api_key(), connect_s=_CONNECT_S)
    if not client.loopback:  # prompts stay on this machine
        return None
    try:
        client.version(timeout_s=_LOOK_S)
    except NoServerError:
        return None
    except MoeinfError as error:
        say(f"note: the server at {client.url} is not used: {error}")
        return None
    return client


def model_on_server(
    client: ServerClient, stored: StoredModel, config: RuntimeConfig, keep_alive: str | None, loading: LoadBar
) -> RemoteModel | None:
    """The model, which the server loads if need be; None where it has not that model, or not as `config` asks.

    A run that is to be recorded answers itself: the server records what it was told to. keep_alive: how long the model
    stays loaded after each answer; None leaves it to the server. Raises what the server says where it cannot load it.
    """
    if config.recording.trace or family_of(config_json(stored)).encoder_input is not None:
        return None
    wanted = preset_of(stored).configured(config)
    loaded = loaded_there(client, stored)
    if loaded is not None and wanted.given() not in ({}, loaded["moeinf"]["config"]):
        return None
    if loaded is None:
        if config.given() or not _lists(client, stored):
            return None
        loaded = load_there(client, stored, keep_alive, loading)
    from moeinf.terminal.remote.remote_model import RemoteModel

    return RemoteModel(client, stored, loaded, keep_alive)


def load_there(client: ServerClient, stored: StoredModel, keep_alive: str | None, loading: LoadBar) -> JsonObject:
    """Has the server load a model, and returns what /api/ps tells of it. Raises what the server says."""
    body: JsonObject = {"model": stored.name}
    if keep_alive is not None and seconds_of("--keepalive", keep_alive) != 0:  # else it would be closed at once
        body["keep_alive"] = keep_alive
    for line in client.stream("/api/generate", body, lambda: False):
        told = line.get("moeinf", {})
        if told.get("phase") == "loading":
            loading(told["done"], told["total"])
    models = client.models("/api/ps")  # the last used first; the same weights may have another name there
    if not models:
        raise NoServerError(f"the server at {client.url} has closed {stored.name} at once; ask again")
    loaded: JsonObject = loaded_there(client, stored) or models[0]
    return loaded | {"name": stored.name}


def loaded_there(client: ServerClient, stored: StoredModel) -> JsonObject | None:
    """What /api/ps tells of the model; whatever goes with the name is in the digest."""
    models = client.models("/api/ps", timeout_s=_LOOK_S)
    return next((told for told in models if told["digest"].startswith(stored.own_id)), None)


def _lists(client: ServerClient, stored: StoredModel) -> bool:
    listed = client.models("/api/tags")
    return any(told["name"] == stored.name and told["digest"].startswith(stored.own_id) for told in listed)
