"""The chat on a terminal: lines in, /commands, answers out."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moeinf.config import RuntimeConfig, ollama_value
from moeinf.config.option import Option, http_options, options
from moeinf.errors import ModelNotFoundError, MoeinfError, UsageError
from moeinf.sampling.params import SamplingParams
from moeinf.terminal.chat_options import ChatOptions, modes
from moeinf.terminal.line_editor import LineReader
from moeinf.terminal.screen import harmless
from moeinf.terminal.session import SECOND_INTERRUPT_S, Session, say
from moeinf.terminal.stats_block import cache_lines

if TYPE_CHECKING:
    from moeinf.engine.model import Model
    from moeinf.store.library import Library, StoredModel

_QUOTES = '"""'
_HELP = """\
Available Commands:
  /set            Set session variables
  /show           Show model information
  /load <model>   Load another model
  /list           List stored models
  /stats          Show the expert cache and the context
  /regen          Answer the last message again
  /clear          Clear session context
  /bye            Exit
  /?, /help       Help for a command
  /? shortcuts    Help for keyboard shortcuts

Use \"\"\" to begin a multi-line message."""
_HELP_SET = "\n".join(
    [
        "Available Commands:",
        "  /set parameter ...     Set a parameter",
        *(f"  /set {words:<18}{text}" for each in options(ChatOptions) for words, text in each.chat.items()),
    ]
)
_HELP_SHOW = """\
Available Commands:
  /show info         Show details of this model
  /show license      Show its license
  /show parameters   Show its parameters, and yours
  /show system       Show system message
  /show template     Show its chat template"""
_HELP_SHORTCUTS = """\
Available keyboard shortcuts:
  Ctrl + a, Ctrl + e      Move to the beginning or the end of the line
  Alt + b, Alt + f        Move by a word
  Ctrl + k, Ctrl + u      Delete to the end or the beginning of the line
  Ctrl + w                Delete the word before the cursor
  Ctrl + j                Begin a new line in the message
  Up, Down                Earlier and later messages
  Ctrl + l                Clear the screen
  Ctrl + c                Stop the answer; twice: exit
  Ctrl + d                Exit"""
_HELPS = {
    "": _HELP,
    "set": _HELP_SET,
    "/set": _HELP_SET,
    "show": _HELP_SHOW,
    "/show": _HELP_SHOW,
    "shortcuts": _HELP_SHORTCUTS,
}


class Chat:
    """One chat. open_model(name, config) opens another model, or the same with another configuration."""

    def __init__(
        self,
        session: Session,
        reader: LineReader,
        config: RuntimeConfig,
        library: Library,
        open_model: Callable[[str, RuntimeConfig], Model],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._reader = reader
        self._config = config
        self._library = library
        self._open_model = open_model
        self._clock = clock
        self._interrupted_s = float("-inf")
        self._commands: dict[str, Callable[[str], None]] = {
            "/?": self._help,
            "/help": self._help,
            "/clear": self._clear,
            "/set": self._set,
            "/show": self._show,
            "/load": self._load,
            "/list": self._list,
            "/ls": self._list,
            "/stats": self._stats,
            "/regen": self._regen,
        }

    def run(self) -> None:
        """Until /bye or the end of input. The model that is open then stays open. KeyboardInterrupt: Ctrl-C twice."""
        while True:
            try:
                message, quoted = self._read_message()
            except KeyboardInterrupt:
                if self._clock() - self._interrupted_s < SECOND_INTERRUPT_S:
                    raise
                say("\nUse Ctrl + d or /bye to exit.")
                continue
            except EOFError:
                print()
                return
            if not quoted and message.strip() in ("/bye", "/exit"):
                return
            try:
                if quoted:
                    self._answer_if_any(message)
                else:
                    self._handle(message)
            except MoeinfError as error:
                say(f"error: {error}")

    @property
    def model(self) -> Model:
        """The one that is open now, for whoever closes it."""
        return self._session.model

    def _read_message(self) -> tuple[str, bool]:
        """One line, or the lines of a block in triple quotes, one entry of the history either way; and whether all of
        it stood in quotes, and so is a message whatever it begins with."""
        text = self._reader.read(">>> ")
        at = text.find(_QUOTES)
        if at == 0 or (at > 0 and text[:at].split() == ["/set", "system"]):
            while not text[at + 3 :].rstrip().endswith(_QUOTES):
                text += "\n" + self._reader.read("... ")
            self._reader.remember(text)
            return text[:at] + text[at + 3 :].rstrip()[:-3].strip("\n"), at == 0
        self._reader.remember(text)
        return text, False

    def _handle(self, message: str) -> None:
        word, _, rest = message.strip().partition(" ")
        if word in self._commands:
            self._commands[word](rest.strip())
        elif word.startswith("/"):
            say(f"Unknown command '{word}'. Type /? for help")
        else:
            self._answer_if_any(message)

    def _answer_if_any(self, message: str) -> None:
        if message.strip():
            self._answer(message)

    def _answer(self, message: str) -> None:
        with self._session.writer(tty=True) as writer:
            completion = self._session.ask(message, writer.write, writer.think)
        self._session.comment(completion)
        if completion.finish_reason == "interrupted":
            self._interrupted_s = self._clock()
            say("[interrupted]")

    def _help(self, topic: str) -> None:
        say(_HELPS.get(topic, _HELP))

    def _clear(self, _: str) -> None:
        self._session.clear()
        say("Cleared session context")

    def _regen(self, _: str) -> None:
        before = list(self._session.messages)
        message = self._session.take_last_question()
        if message is None:
            say("There is no message to answer again")
            return
        try:
            self._answer(message)
        except MoeinfError:
            self._session.messages[:] = before  # the answer that there was is still one
            raise

    def _stats(self, _: str) -> None:
        for line in cache_lines(self.model):
            say(line)

    def _list(self, _: str) -> None:
        from moeinf.terminal.show import list_lines

        print("\n".join(list_lines(self._library.list())))

    # ---- /set

    def _set(self, rest: str) -> None:
        what, _, value = rest.partition(" ")
        if what == "parameter":
            self._set_parameter(value)
        elif what == "system" and value.strip():
            self._session.set_system(value.strip())
            say("Set system message.")
        elif what in ("think", "nothink"):
            self._set_think(what, value.strip())
        elif what in modes():
            self._set_mode(what)
        else:
            say(_HELP_SET if what in ("", "system") else f"Unknown command '/set {what}'. Type /? set for help")

    def _set_mode(self, mode: str) -> None:
        option, on = modes()[mode]
        self._session.change(**{option.name: on})
        if option.name == "history":
            self._reader.keep_history = on
        say(f"Set '{mode}' mode.")

    def _set_think(self, mode: str, level: str) -> None:
        think = "false" if mode == "nothink" else level or "true"
        variables = self._session.options.variables or {}
        self.model.template_variables(think, variables)  # refuses what the model cannot be told
        self._session.change(think=think)
        say(f"Set '{mode}' mode{f' to {level!r}' if level else ''}.")

    def _set_parameter(self, text: str) -> None:
        name, *values = _words(text)
        try:
            known = http_options("ollama", SamplingParams, RuntimeConfig)
            if name not in known:
                raise UsageError(f"unknown parameter '{name}'; known: {', '.join(sorted(known))}")
            if not values:
                raise UsageError(f"'{name}' needs a value")
            self._store_parameter(known[name], values)
        except UsageError as error:
            say(f'Couldn\'t set parameter: "{error}"')
            return
        say(f"Set parameter '{name}' to '{', '.join(values)}'")

    def _store_parameter(self, option: Option, values: list[str]) -> None:
        value = tuple(values) if option.name == "stop" else ollama_value(option, values[0])
        if option in options(RuntimeConfig):
            changed: dict[str, Any] = {option.name: value}
            self._reopen(self.model.name, replace(self._config, **changed))
        else:
            sampling = self._session.sampling | {option.name: value}
            self.model.params(**sampling)  # refuses what is out of range
            self._session.sampling = sampling

    # ---- /show and /load

    def _show(self, what: str) -> None:
        from moeinf.terminal import show as facts

        texts: dict[str, Callable[[StoredModel], str]] = {
            "info": lambda stored: "\n".join(facts.show_lines(stored)),
            "license": lambda stored: facts.license_text(stored) or _none("license"),
            "parameters": self._parameters_text,
            "template": lambda stored: facts.template_text(stored) or _none("prompt template"),
        }
        if what == "system":
            print(harmless(self._session.options.system or _none("system message")))
        elif what in texts:
            print(harmless(texts[what](self._library.find(self.model.name))))
        else:
            say(_HELP_SHOW)

    def _parameters_text(self, stored: StoredModel) -> str:
        from moeinf.terminal.show import parameters_text

        user = [f"{name} {value}" for name, value in self._session.sampling.items()]
        return "\n".join(
            [
                "Model defined parameters:",
                parameters_text(stored) or "none",
                "",
                "User defined parameters:",
                *(user or ["none"]),
            ]
        )

    def _load(self, name: str) -> None:
        if not name:
            say("Usage: /load <model>")
            return
        try:
            found = self._library.find(name)
        except ModelNotFoundError:
            say(f"Couldn't find model '{name}'")
            return
        self._reopen(found.name, self._config)
        self._session.clear()

    def _reopen(self, name: str, config: RuntimeConfig) -> None:
        """Two models seldom fit side by side: the old one is closed first, and opened again if the new one fails."""
        old = self.model.name
        self.model.close()
        try:
            model = self._open_model(name, config)
        except MoeinfError:
            self._session.use(self._open_model(old, self._config))
            raise
        self._config = config
        self._session.use(model)


def _none(what: str) -> str:
    return f"No {what} was specified for this model."


def _words(text: str) -> list[str]:
    """Words as a shell splits them, so that a stop string may hold spaces; at least one."""
    try:
        return shlex.split(text) or [""]
    except ValueError:
        return text.split() or [""]
