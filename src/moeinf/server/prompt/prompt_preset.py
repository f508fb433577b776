"""What goes with the name that a client asks for: a system message, and options of its own."""

from __future__ import annotations

from dataclasses import replace

from moeinf.engine.completion import TokenIds
from moeinf.engine.stored.preset import Preset
from moeinf.server.ask import Ask, Inputs


def with_preset(ask: Ask, preset: Preset) -> Ask:
    """The ask, with what the preset says and the client does not."""
    ask = replace(ask, params={**preset.params, **ask.params}, config={**preset.config, **ask.config})
    if not preset.system or ask.prompt is None or isinstance(ask.prompt, TokenIds | Inputs) or ask.raw:
        return ask
    messages = [{"role": "user", "content": ask.prompt}] if isinstance(ask.prompt, str) else [*ask.prompt]
    if messages and messages[0].get("role") == "system":
        return ask
    return replace(ask, prompt=[{"role": "system", "content": preset.system}, *messages])
