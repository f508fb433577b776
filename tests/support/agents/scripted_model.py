"""A model that says what a script has for it: so many results of tools, so much is done."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.speaker import END, write_speaker

ASIDE = "Mending"  # said where no tools are given: agents ask for titles and summaries beside their work
CONTEXT = 131_072
_TEMPLATE = (
    "{% for m in messages %}<|im_start|> {{ m.role }} {{ m.content }}"
    "{% for call in m.tool_calls or [] %} <tool_call> {{ call.function | tojson }} </tool_call>{% endfor %}"
    " <|im_end|> {% endfor %}"
    "{% for tool in tools or [] %} {{ tool | tojson }}{% endfor %} <|im_start|> "
    "{% if tools or ALWAYS %}step-{{ [messages | selectattr('role', 'equalto', 'tool') | list | length, LAST] | min }}"
    "{% else %}aside{% endif %}"
)


def call(name: str, arguments: Mapping[str, Any]) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def write_script(folder: Path, script: Sequence[str], *, always: bool = False) -> Path:
    """Writes a checkpoint. script: what is said first, behind the first result of a tool, behind the second, and so on;
    behind more, the last. always: also to a request without tools, which else is answered with ASIDE.
    """
    says = {f"step-{at}": said for at, said in enumerate(script)} | {"aside": ASIDE}
    says |= dict.fromkeys(list(says.values()), END)
    last = str(len(script) - 1)
    template = _TEMPLATE.replace("ALWAYS", str(always).lower()).replace("LAST", last)
    return write_speaker(folder, says, template, (), CONTEXT)
