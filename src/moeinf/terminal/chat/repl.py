"""The loop of a chat: reads a message, obeys or answers it, and reads the next."""

from __future__ import annotations

import time
from collections.abc import Callable

from moeinf.errors import MoeinfError
from moeinf.terminal.chat.chat_settings import Settings
from moeinf.terminal.chat.commands import Commands
from moeinf.terminal.chat.line_editor import LineReader
from moeinf.terminal.chat.switch import ModelSwitch
from moeinf.terminal.conversation_loop import Conversation
from moeinf.terminal.process.interrupt import SECOND_INTERRUPT_S
from moeinf.terminal.user_notes import say

_QUOTES = '"""'


class Repl:
    """One chat."""

    def __init__(
        self,
        conversation: Conversation,
        reader: LineReader,
        switch: ModelSwitch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._conversation = conversation
        self._reader = reader
        self._clock = clock
        self._interrupted_s = float("-inf")
        self._commands = Commands(conversation, switch, Settings(conversation, switch, reader), self._answer)

    def run(self) -> None:
        """Goes on until /bye or the end of input. Leaves the model open. Raises KeyboardInterrupt for Ctrl-C twice."""
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
            if not quoted and message.split()[:1] in (["/bye"], ["/exit"]):
                return
            try:
                if quoted:
                    self._answer_if_any(message)
                else:
                    self._handle(message)
            except MoeinfError as error:
                say(f"error: {error}")

    def _read_message(self) -> tuple[str, bool]:
        """One line, or the lines of a block in triple quotes; either is one entry of the history.

        What has several lines when Enter is pressed, as a paste may, is whole, also where it begins with a docstring.
        Also whether all of it stood in quotes: then it is a message, whatever it begins with.
        """
        text = self._reader.read(">>> ")
        at = text.find(_QUOTES)
        quoted = at == 0 or (at > 0 and text[:at].split() == ["/set", "system"])
        if quoted and "\n" not in text and _QUOTES not in text[at + 3 :]:
            while not text[at + 3 :].rstrip().endswith(_QUOTES):
                text += "\n" + self._reader.read("... ")
        self._reader.remember(text)
        if quoted and text[at + 3 :].rstrip().endswith(_QUOTES):
            return text[:at] + text[at + 3 :].rstrip()[:-3].strip("\n"), at == 0
        return text, False

    def _handle(self, message: str) -> None:
        word, _, rest = message.strip().partition(" ")
        if word.startswith("/"):
            self._commands.run(word, rest.strip())
        else:
            self._answer_if_any(message)

    def _answer_if_any(self, message: str) -> None:
        if message.strip():
            self._answer(message)

    def _answer(self, message: str) -> None:
        with self._conversation.writer(tty=True) as writer:
            completion = self._conversation.ask(message, writer.write, writer.think)
        self._conversation.comment(completion)
        if completion.finish_reason == "interrupted":
            self._interrupted_s = self._clock()
            say("[interrupted]")
