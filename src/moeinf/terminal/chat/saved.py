"""Chats that are kept under a name of their own, beside the names of models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from moeinf.config import RuntimeConfig
from moeinf.config.option import http_options
from moeinf.engine.stored.preset import Preset, preset_of
from moeinf.engine.vision.parts import text_alone
from moeinf.errors import ModelNotFoundError, UsageError
from moeinf.sampling.params import SamplingParams
from moeinf.store.library import Library, StoredModel
from moeinf.store.naming.names import full_name
from moeinf.terminal.conversation_loop import Conversation
from moeinf.terminal.screen import harmless
from moeinf.terminal.user_notes import say
from moeinf.types import JsonMapping, Message


def recall(conversation: Conversation) -> None:
    """Writes what was said so far to standard output, as it stood on a terminal."""
    for message in conversation.messages:
        if message["role"] == "user":
            print(harmless(f">>> {text_alone([message])}"))
        else:
            with conversation.writer(tty=True) as writer:
                writer.write(text_alone([message]))


def save_chat(conversation: Conversation, config: RuntimeConfig, library: Library, name: str) -> StoredModel:
    """Gives the model one more name, with which goes what was said, the system message and the options.

    Pictures are left out, with a note. Raises UsageError for what is no name, and for one that is no saved chat's.
    """
    full = full_name(name)
    with suppress(ModelNotFoundError):
        held = library.find(full)
        if held.name == full and not preset_of(held).messages:
            raise UsageError(f"{name} is the name of a model; give the chat another one")
    if not conversation.messages:
        raise UsageError("nothing was said yet; save the chat after the first answer")
    if any(isinstance(message["content"], list) for message in conversation.messages):
        say("note: pictures are not kept with a chat, only what was said of them")
    messages = tuple(map(_texts_of, conversation.messages))
    options = (*option_pairs(conversation.sampling), *_context_of(config))
    preset = Preset(conversation.system, options, messages).over(conversation.preset)
    return library.copy(conversation.model.name, name, preset.dumps())


def option_pairs(sampling: JsonMapping) -> Iterator[tuple[str, str]]:
    """The options of a chat as a Modelfile has them."""
    for name, option in http_options("ollama", SamplingParams).items():
        value = sampling.get(option.name)
        for each in value if isinstance(value, tuple) else () if value is None else (value,):
            yield name, str(each)


def _context_of(config: RuntimeConfig) -> Iterator[tuple[str, str]]:
    if config.memory.context is not None:
        yield "num_ctx", str(config.memory.context)


def _texts_of(message: Message) -> Message:
    return {**message, "content": text_alone([message])}
