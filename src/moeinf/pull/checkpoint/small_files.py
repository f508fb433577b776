"""The files beside the weights that a model takes over from its checkpoint, and the chat template that it is given."""

from __future__ import annotations

from functools import cached_property
from typing import Final

from moeinf.pull.source import Source
from moeinf.pull.tiktoken_file import made_tokenizer
from moeinf.text.templates.file import TEMPLATE_FILE
from moeinf.text.templates.own import OWN_NOTE, has_template, names_of, own_template

_ONLY_CODE: Final = (
    "no chat template: the checkpoint writes chats by code (encoding), which is not run, so that this model continues "
    "texts like a base model; pull a GGUF file of it, or a folder that has its chat_template.jinja, too"
)


class SmallFiles:
    """Each file is read once."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @property
    def all(self) -> dict[str, bytes]:
        """By their names, which lie side by side."""
        return self._kept | ({TEMPLATE_FILE: self._own_template.encode()} if self._own_template else {})

    @property
    def told(self) -> tuple[str, ...]:
        """A line for users where chats are not written by a template of the checkpoint."""
        return (OWN_NOTE,) if self._own_template else (_ONLY_CODE,) if self._chat_code else ()

    @cached_property
    def _kept(self) -> dict[str, bytes]:
        kept = {name.replace("/", "_"): self._source.read_file(name) for name in self._source.kept_files()}
        return kept | made_tokenizer(kept)

    @cached_property
    def _own_template(self) -> str:
        return own_template(self._kept, names_of(self._source.origin), self._chat_code)

    @cached_property
    def _chat_code(self) -> str:
        return "" if has_template(self._kept) else self._source.chat_code()
