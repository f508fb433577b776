"""What the /commands of a chat do, but for /set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from moeinf.engine.stored.facts import StoredFacts, licence_text
from moeinf.engine.stored.parameters import parameter_rows
from moeinf.engine.stored.preset import Preset, preset_of
from moeinf.errors import ModelNotFoundError, MoeinfError
from moeinf.store.library import StoredModel
from moeinf.terminal.answer_stats import cache_lines
from moeinf.terminal.chat.chat_settings import Settings
from moeinf.terminal.chat.help import HELP_SHOW, help_text
from moeinf.terminal.chat.saved import option_pairs, recall, save_chat
from moeinf.terminal.chat.switch import ModelSwitch
from moeinf.terminal.conversation_loop import Conversation
from moeinf.terminal.screen import harmless, print_fitted, table
from moeinf.terminal.stored.listing import list_lines
from moeinf.terminal.stored.show import parameters_text, show_lines
from moeinf.terminal.user_notes import say


class Commands:
    """The commands of one chat, by their words."""

    def __init__(
        self, conversation: Conversation, switch: ModelSwitch, settings: Settings, answer: Callable[[str], None]
    ) -> None:
        """answer(question) writes the answer to standard output."""
        self._conversation = conversation
        self._switch = switch
        self._answer = answer
        self._commands: dict[str, Callable[[str], None]] = {
            "/?": self._help,
            "/help": self._help,
            "/clear": self._clear,
            "/set": settings.set,
            "/show": self._show,
            "/load": self._load,
            "/save": self._save,
            "/list": self._list,
            "/ls": self._list,
            "/stats": self._stats,
            "/regen": self._regen,
            "/read": self._read,
        }

    def run(self, word: str, rest: str) -> None:
        """Does what a word with a slash asks for. Raises MoeinfError."""
        if word in self._commands:
            self._commands[word](rest)
        else:
            say(f"Unknown command '{word}'. Type /? for help")

    def _help(self, topic: str) -> None:
        say(help_text(topic))

    def _clear(self, _: str) -> None:
        self._conversation.clear()
        say("Cleared session context")

    def _read(self, path: str) -> None:
        if not path:
            say("Usage: /read <picture.png>")
            return
        self._conversation.show_picture(Path(path))
        count = len(self._conversation.pictures)
        say(f"Read {path}: your next message goes with {'it' if count == 1 else f'{count} pictures'}")

    def _regen(self, _: str) -> None:
        before = list(self._conversation.messages)
        message = self._conversation.take_last_question()
        if message is None:
            say("There is no message to answer again")
            return
        try:
            self._answer(message)
        except MoeinfError:
            self._conversation.messages[:] = before  # the answer that there was is still one
            raise

    def _stats(self, _: str) -> None:
        for line in cache_lines(self._conversation.model):
            say(line)

    def _list(self, _: str) -> None:
        print_fitted("\n".join(list_lines(self._switch.library.list())))

    def _show(self, what: str) -> None:
        texts: dict[str, Callable[[StoredModel], str]] = {
            "info": lambda stored: "\n".join(show_lines(stored)),
            "license": lambda stored: licence_text(stored) or _none("licence"),
            "parameters": self._parameters_text,
            "template": lambda stored: StoredFacts(stored).template or _none("prompt template"),
        }
        if what == "system":
            print_fitted(harmless(self._conversation.system or _none("system message")))
        elif what in texts:
            shown = print if what == "template" else print_fitted  # a template is code
            shown(harmless(texts[what](self._switch.library.find(self._conversation.model.name))))
        else:
            say(HELP_SHOW)

    def _parameters_text(self, stored: StoredModel) -> str:
        said = {**self._conversation.preset.params, **self._conversation.sampling}
        user = table(parameter_rows({}, Preset(options=tuple(option_pairs(said)))))
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
            found = self._switch.library.find(name)
        except ModelNotFoundError:
            say(f"Couldn't find model '{name}'")
            return
        self._switch.change(found.name, self._switch.config)
        self._conversation.clear()
        self._conversation.preset = preset_of(found)
        self._conversation.messages.extend(self._conversation.preset.messages)
        recall(self._conversation)

    def _save(self, name: str) -> None:
        if not name:
            say("Usage: /save <name>")
            return
        stored = save_chat(self._conversation, self._switch.config, self._switch.library, name)
        word = stored.name.removesuffix(":latest")
        say(f"Saved this chat: `moeinf run {word}` and /load {word} go on with it, and `moeinf rm {word}` deletes it")


def _none(what: str) -> str:
    return f"No {what} was specified for this model."
