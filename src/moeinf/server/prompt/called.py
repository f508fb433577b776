"""Calls of earlier turns, as clients of OpenAI's and of ollama's API send them."""

from __future__ import annotations

from typing import Any

import msgspec


class Called(msgspec.Struct):
    """The function of a call that the model has made."""

    name: str
    arguments: str | dict[str, Any] | None = None


class CallOfTurn(msgspec.Struct, omit_defaults=True):
    function: Called
    id: str | None = None
    type: str = "function"
