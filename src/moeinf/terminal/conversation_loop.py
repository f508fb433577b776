"""A conversation with an open model: what was said so far, and how the next answer comes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from moeinf.engine.completion import Completion, Hooks
from moeinf.engine.stored.preset import NO_PRESET, Preset
from moeinf.engine.vision.parts import text_alone
from moeinf.errors import ContextLengthError, UsageError
from moeinf.terminal.answer_stats import stats_lines
from moeinf.terminal.answer_writer import AnswerWriter
from moeinf.terminal.arguments.chat_options import ChatOptions
from moeinf.terminal.picture_files import picture_part
from moeinf.terminal.process.interrupt import Interrupt
from moeinf.terminal.progress import PrefillCount, StatusLine
from moeinf.terminal.screen import can_draw
from moeinf.terminal.user_notes import Notices, say
from moeinf.text.templates.own import is_for, names_of
from moeinf.types import JsonObject

if TYPE_CHECKING:
    from moeinf.engine.model import Model
    from moeinf.terminal.remote.remote_model import RemoteModel
    from moeinf.types import Message


@dataclass
class Conversation:
    """The state from which the next answer is made. A single question is a conversation of one turn.

    sampling: the options that the user gave; the model's preset, then the checkpoint, has a say in the others.
    """

    model: Model | RemoteModel
    sampling: dict[str, object] = field(default_factory=dict)
    options: ChatOptions = field(default_factory=ChatOptions)
    messages: list[Message] = field(default_factory=list)
    notices: Notices = field(default_factory=Notices)  # of its models
    preset: Preset = NO_PRESET  # what goes with the model's name
    pictures: list[JsonObject] = field(default_factory=list)  # of the next question: parts of a message
    _warned: bool = False

    def show_picture(self, path: Path) -> None:
        """Puts a picture file into the next question. Raises UsageError for one that cannot be read."""
        self.pictures.append(picture_part(path))

    def use(self, model: Model | RemoteModel) -> None:
        """Goes on with another open model, or with the same one opened anew.

        Prints its notices, and drops what its chat template cannot be told, with a note.
        """
        self.model = model
        self.notices.show()
        try:
            model.template_variables(self.options.think, self.options.variables or {})
        except UsageError as error:
            say(f"note: {error}; what its template was told so far no longer holds")
            self.options = replace(self.options, think=None, variables=None)

    def change(self, **options: object) -> None:
        """Other options of the chat from now on. Raises UsageError."""
        self.options = replace(self.options, **options)  # type: ignore[arg-type]

    @property
    def system(self) -> str:
        """The system message: the user's, else the model's own; "" for none."""
        return self.preset.system if self.options.system is None else self.options.system

    def set_system(self, text: str) -> None:
        """Sets the system message. Where the model takes none, the next answer says so once more."""
        self.options, self._warned = replace(self.options, system=text), False

    def clear(self) -> None:
        self.messages.clear()
        self.pictures.clear()

    def take_last_question(self) -> str | None:
        """Removes the last question and its answer, and returns the question; None where there is none.

        Its pictures are those of the next question again.
        """
        if not self.messages:
            return None
        question = self.messages[-2]["content"]
        del self.messages[-2:]
        self.pictures = [part for part in question if part["type"] == "image"] if isinstance(question, list) else []
        return text_alone([{"content": question}])

    def writer(self, *, tty: bool) -> AnswerWriter:
        """What writes an answer to standard output."""
        options = self.options
        return AnswerWriter(sys.stdout, tty=tty, wrap=not options.nowordwrap, thoughts=not options.hidethinking)

    def ask(
        self, text: str, write: Callable[[str], None], think: Callable[[str], None] | None = None, *, raw: bool = False
    ) -> Completion:
        """Asks the model, and writes its answer piece by piece. An interrupted answer is kept as far as it came.

        think gets the pieces of thoughts; where it is None, a terminal's last line says that the model thinks.
        When the context is full, the oldest question and its answer are dropped. Raises ContextLengthError when
        nothing is left to drop, and KeyboardInterrupt at the second Ctrl-C.
        """
        if not self._warned and not raw and (note := self._no_chat()):
            self._warned = True
            say(f"note: {note}")
        content = [*self.pictures, {"type": "text", "text": text}] if self.pictures else text
        self.messages.append({"role": "user", "content": content})
        kept = False
        try:
            completion = self._generate(write, think, raw)
            self.messages.append(_as_message(completion))
            kept = True
            self.pictures = []
        finally:
            if not kept:
                self.messages.pop()
        return completion

    def _no_chat(self) -> str:
        """What a user should know of a model that cannot hold a chat; "" for one that can."""
        no_system = ", and takes no system message" if self.system else ""
        if self.model.encoder_decoder:
            return f"this model answers each text on its own{no_system}" if self.system else ""
        if not self.model.tokenizer.has_template:
            source, architecture = self.model.manifest.source, self.model.manifest.info.architecture
            if is_for(architecture, names_of(source)):
                no_system += f"; `moeinf pull {self.model.name}` gives it a template of moeinf's own"
            return f"a base model without a chat template: it continues your text, each prompt on its own{no_system}"
        return ""

    def comment(self, completion: Completion) -> None:
        """Says why a finished answer was cut, what notices are new and, with `verbose`, its figures."""
        if cut := self._cut(completion):
            say(f"note: {cut}")
        self.notices.show()
        if self.options.verbose:
            for line in stats_lines(completion.stats, self.model):
                say(line)

    def _cut(self, completion: Completion) -> str:
        """Why the answer is not whole; "" where it is, or where the user asked for that and wants quiet."""
        answer = "the answer"
        if completion.thinking and not completion.text:
            answer = "the model was still thinking: its answer"
            if completion.finish_reason == "stop":
                return "the model thought and then ended without an answer"
        if completion.cut_by == "context":
            return (
                f"{answer} was cut, as the context of {self.model.plan.context} tokens is full: ask for less"
                f"{self.model.longer_context()}"
            )
        if completion.cut_by == "num_predict" and not self.options.quiet:
            return f"{answer} was cut after {completion.stats.generated_tokens} tokens, as num_predict asks for"
        if completion.cut_by == "max_length":
            return (
                f"{answer} was cut after {completion.stats.generated_tokens} tokens, which the checkpoint sets as the "
                "longest; --num-predict allows for more"
            )
        return ""

    def _generate(self, write: Callable[[str], None], think: Callable[[str], None] | None, raw: bool) -> Completion:
        line = StatusLine(sys.stderr, enabled=can_draw(sys.stderr) and not self.options.quiet)

        def on_thought(piece: str) -> None:
            if think is None:
                line.show("thinking")
            else:
                line.clear()
                think(piece)

        with Interrupt() as interrupt:
            try:
                for piece in self._pieces(raw, Hooks(lambda: interrupt.wanted, PrefillCount(line), on_thought)):
                    line.clear()
                    write(piece)
            finally:
                line.clear()
        assert self.model.last is not None
        return self.model.last

    def _pieces(self, raw: bool, hooks: Hooks) -> Iterator[str]:
        params, told = self.model.params(**{**self.preset.params, **self.sampling}), self.options
        while True:
            prompt = self._prompt(raw)
            try:
                return self.model.stream(
                    prompt,
                    params,
                    raw=raw,
                    think=told.think,
                    variables=told.variables or {},
                    format=told.answer_format(),
                    hooks=hooks,
                )
            except ContextLengthError:
                if (
                    len(self.messages) < 3 or len(prompt) == 1 or isinstance(prompt, str)
                ):  # what was said before is no part of a text
                    raise
                del self.messages[:2]
                say("note: the context is full: the oldest question and answer were dropped")

    def _prompt(self, raw: bool) -> str | list[Message]:
        if raw or self.model.encoder_decoder or not self.model.tokenizer.has_template:  # each text on its own
            content = self.messages[-1]["content"]
            return content if isinstance(content, str) else [self.messages[-1]]
        system: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.messages]


def _as_message(completion: Completion) -> Message:
    """An answer as a chat template gets it; the template decides which thoughts the model sees again."""
    # Some templates take an assistant's message without text for a call of a tool.
    message = {"role": "assistant", "content": completion.text or "..."}
    if completion.thinking:  # under the name of gpt-oss, and under that of all others
        message |= {"thinking": completion.thinking, "reasoning_content": completion.thinking}
    return message
