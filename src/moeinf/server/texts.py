"""Tokenizers of stored models, to count tokens without waiting for the model."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from moeinf.store.library import StoredModel
from moeinf.text.thinking import TemplateFacts
from moeinf.text.tokenizer import Tokenizer
from moeinf.types import Message

_MOST_OPEN = 2  # each is a process of its own


class Texts:
    """Opens tokenizers when they are asked for, and keeps the last ones. Thread-safe; close it."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, Tokenizer] = OrderedDict()
        self._lock = threading.Lock()

    def template(self, stored: StoredModel) -> TemplateFacts | None:
        """What the model's chat template can be told; None where it has none. Blocks. Raises TextError."""
        with self._lock:
            return self._of(stored).template

    def count(self, stored: StoredModel, messages: Sequence[Message], variables: Mapping[str, Any]) -> int:
        """Tokens of a chat as the template writes it. Blocks. Raises TextError."""
        with self._lock:
            tokenizer = self._of(stored)
            if not tokenizer.has_template:
                return len(tokenizer.encode("\n".join(str(message["content"]) for message in messages)))
            return len(tokenizer.encode_chat(tokenizer.render(messages, variables)[0]))

    def _of(self, stored: StoredModel) -> Tokenizer:
        """Under the lock alone, as one that is in use must not be closed."""
        tokenizer = self._open.pop(stored.id, None) or Tokenizer(
            stored.path, num_embeddings=stored.manifest.info.vocab_size
        )
        self._open[stored.id] = tokenizer
        while len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)[1].close()
        return tokenizer

    def close(self) -> None:
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()
