"""Opens a model for a verb: pulls it first if need be, and shows on a terminal how far that is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from moeinf.config import RuntimeConfig
from moeinf.config.environment import api_key, server_address, store_home
from moeinf.config.pull_options import NO_OPTIONS, PullOptions
from moeinf.config.server_options import seconds_of
from moeinf.engine.stored.facts import StoredFacts
from moeinf.engine.stored.preset import preset_of
from moeinf.errors import ModelNotFoundError, MoeinfError, UsageError
from moeinf.references.meaning import meaning
from moeinf.store.library import Library, StoredModel
from moeinf.store.naming.names import MTP
from moeinf.terminal.arguments.chat_options import ChatOptions
from moeinf.terminal.arguments.first_steps import TOY
from moeinf.terminal.conversation_loop import Conversation
from moeinf.terminal.progress import LoadBar, StatusLine
from moeinf.terminal.pull_progress import PullDisplay
from moeinf.terminal.remote.client import ServerClient
from moeinf.terminal.remote.look import load_there, model_on_server, server_here
from moeinf.terminal.screen import can_draw, wrapped
from moeinf.terminal.user_notes import Notices, say, say_below
from moeinf.text.thinking_text import template_variables

USUAL = RuntimeConfig()

if TYPE_CHECKING:
    from moeinf.engine.model import Model
    from moeinf.terminal.remote.remote_model import RemoteModel


def ensure_stored(
    name: str, options: PullOptions = NO_OPTIONS, config: RuntimeConfig = USUAL, *, quiet: bool, yes: bool = False
) -> StoredModel:
    """The stored model, which is pulled where there is none. config: by which the form of a known model is chosen; yes:
    without a question."""
    library = Library(store_home())
    found = meaning(name, options, library)
    if found.stored is not None:
        return found.stored
    if found.several:
        from moeinf.terminal.forms.stored_choice import chosen_stored

        return chosen_stored(found.asked, found.several, yes=yes, quiet=quiet)
    from moeinf.references.fetching import fetch  # what only a pull needs takes a tenth of a second to load
    from moeinf.terminal.forms.choosing import chosen_form

    found = chosen_form(found, library, config, "run", yes=yes, quiet=quiet)
    with PullDisplay(sys.stderr, quiet=quiet) as display:
        return fetch(found, library, display)


@contextmanager
def opened(
    stored: StoredModel, config: RuntimeConfig, notices: Notices, *, quiet: bool, keep_alive: str | None = None
) -> Iterator[Model | RemoteModel]:
    """The open model; what it has to say when it is closed comes to stderr.

    Where a server of this machine can, it answers. keep_alive: how long the model is to stay loaded in it afterwards,
    for which a server is started where none runs; None leaves that to the one that runs.
    """
    model = _on_server(stored, config, keep_alive, quiet=quiet) or load(stored, config, notices, quiet=quiet)
    try:
        yield model
    finally:
        model.close()
        notices.show()


def _on_server(
    stored: StoredModel, config: RuntimeConfig, keep_alive: str | None, *, quiet: bool
) -> RemoteModel | None:
    """The model on a server of this machine. Raises UsageError where it is to stay loaded and no server can have it."""
    client = server_here()
    if client is None:
        return None if keep_alive is None else _kept(stored, config, keep_alive, quiet=quiet)
    line = StatusLine(sys.stderr, enabled=can_draw(sys.stderr) and not quiet)
    line.show(f"loading {stored.name}")
    try:
        remote = model_on_server(client, stored, config, keep_alive, LoadBar(line, f"loading {stored.name}"))
    except ModelNotFoundError:  # it has gone there meanwhile
        remote = None
    except MoeinfError as error:
        line.clear()
        if keep_alive is not None:
            raise
        say(f"note: the server at {client.url} is not used: {error}")
        return None
    finally:
        line.clear()
    if remote is None and keep_alive is not None:
        raise UsageError(
            f"--keepalive: the server at {client.url} does not run {stored.name} like that; leave out --keepalive, or "
            "the options of the model"
        )
    if remote is not None and not quiet:
        say(f"using the server at {remote.url}")
    return remote


def _kept(stored: StoredModel, config: RuntimeConfig, keep_alive: str, *, quiet: bool) -> RemoteModel | None:
    """The model on a server that is started for it, and ends when it has no model any more."""
    from moeinf.terminal.remote.remote_model import RemoteModel
    from moeinf.terminal.remote.start_server import start_server

    if seconds_of("--keepalive", keep_alive) == 0:
        return None
    client = ServerClient(server_address(), api_key())
    if not client.loopback:
        raise UsageError(f"--keepalive keeps a model on this machine, and MOEINF_HOST is {client.url}; leave one out")
    if config.recording.trace:
        raise UsageError("--trace records what this command answers itself; leave out --keepalive")
    server = start_server(["--until-idle", "--keep-alive", keep_alive], config, store_home() / "serve.log")
    line = StatusLine(sys.stderr, enabled=can_draw(sys.stderr) and not quiet)
    line.show(f"loading {stored.name}")
    try:
        told = load_there(client, stored, keep_alive, LoadBar(line, f"loading {stored.name}"))
    except BaseException:
        server.end()
        raise
    finally:
        line.clear()
    if not quiet:
        end = f"`moeinf stop {stored.name.removesuffix(':latest')}` ends it"
        say(f"started a server at {server.url}, which keeps the model for {keep_alive} after each answer; {end}")
    return RemoteModel(client, stored, told, keep_alive)


def load(stored: StoredModel, config: RuntimeConfig, notices: Notices, *, quiet: bool) -> Model:
    """The open model, after a bar on a terminal, and one line about the memory that it takes."""
    talkative, config = sys.stderr.isatty() and not quiet, preset_of(stored).configured(config)
    if config.speculation.draft == MTP:
        from moeinf.pull.mtp_layer import ensure_draft

        with PullDisplay(sys.stderr, quiet=quiet) as display:
            ensure_draft(stored, config, display)
    line = StatusLine(sys.stderr, enabled=talkative and can_draw(sys.stderr))
    loading, pinning = (LoadBar(line, f"{verb} {stored.name}") for verb in ("loading", "pinning memory for"))
    line.show(f"loading {stored.name}")
    try:
        from moeinf.engine.model import Model
        from moeinf.engine.reporting import Reporting  # takes a while, so that the line above comes first

        model = Model(stored, config, Reporting(notices.add, say_below, loading, pinning, line.show))
    finally:
        line.clear()
    if talkative:
        say(wrapped(model.describe(), get_terminal_size().columns))
        if stored.manifest.source.kind == "embedded":
            say(f"note: this is {TOY}")
    return model


def shares_text(stored: StoredModel, config: RuntimeConfig) -> str:
    """What each rank or card has of the model, one a line. Opens it on all of them, and closes it."""
    from moeinf.engine.model import Model
    from moeinf.engine.reporting import Reporting

    with Model(stored, preset_of(stored).configured(config), Reporting(say), preload=False) as model:
        return "\n".join(model.runner.describe(model.manifest.moe).split(" · "))


def check_template(stored: StoredModel, chat: ChatOptions) -> None:
    """Raises UsageError, before anything is loaded, for what the model's chat template would ignore."""
    if chat.think or chat.variables:
        template_variables(StoredFacts(stored).template_facts, chat.think, chat.variables or {})


def hold_chat(conversation: Conversation, config: RuntimeConfig) -> None:
    """Runs the chat until it ends, and closes the model that is open then."""
    from moeinf.terminal.chat.line_editor import open_reader
    from moeinf.terminal.chat.repl import Repl
    from moeinf.terminal.chat.saved import recall
    from moeinf.terminal.chat.switch import ModelSwitch

    library, options = Library(store_home()), conversation.options
    reader = open_reader(store_home() / "history" if options.history else None)

    def open_model(name: str, new: RuntimeConfig) -> Model:
        model = load(library.find(name), new, conversation.notices, quiet=options.quiet)
        model.warm_up()
        return model

    switch = ModelSwitch(conversation, config, library, open_model)
    conversation.model.warm_up()  # while the user types
    recall(conversation)
    try:
        Repl(conversation, reader, switch).run()
    finally:
        conversation.model.close()
