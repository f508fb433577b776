"""Calls of earlier turns, as clients of OpenAI's and of ollama's API send them."""

from __future__ import annotations

import msgspec

from moeinf.server.body import check_size
from moeinf.types import JsonObject


class Called(msgspec.Struct):
    """The function of a call that the model has made."""

    name: str
    arguments: str | JsonObject | None = None

    def __post_init__(self) -> None:
        """Raises Refusal for a text of JSON that is larger than a body may be."""
        if isinstance(self.arguments, str):
            check_size(self.arguments.encode(), "arguments")


class CallOfTurn(msgspec.Struct, omit_defaults=True):
    function: Called
    id: str | None = None
    type: str = "function"
