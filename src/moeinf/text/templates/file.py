"""Where a checkpoint keeps its chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from moeinf.errors import MALFORMED, TextError, remedy_of
from moeinf.types import JsonMapping

TEMPLATE_FILE: Final = "chat_template.jinja"
_TOOLS_FILE: Final = "additional_chat_templates_tool_use.jinja"  # as pull stores the file of that folder


def find_template(folder: Path, tokenizer_config: JsonMapping, *, with_tools: bool = False) -> str | None:
    """The checkpoint's chat template, or None for a base model. Raises TextError where one is there but unreadable.

    with_tools: the one for chats with tools, where there are two.
    """
    tools_file = folder / _TOOLS_FILE
    own_file = tools_file if with_tools and tools_file.is_file() else folder / TEMPLATE_FILE
    try:
        if own_file.is_file():
            return own_file.read_text(encoding="utf-8")
        template = tokenizer_config.get("chat_template")
        if template is None and (folder / "chat_template.json").is_file():
            template = json.loads((folder / "chat_template.json").read_text(encoding="utf-8")).get("chat_template")
    except OSError as error:
        reason, remedy = f"{error.filename or own_file}: {error.strerror}", remedy_of(error, "pull the model again")
        raise TextError(f"the chat template cannot be read ({reason}); {remedy}") from error
    except MALFORMED as error:
        raise TextError(f"the chat template in {folder} cannot be read ({error}); pull the model again") from error
    if isinstance(template, list):  # [{"name": "default", "template": "..."}, {"name": "tool_use", ...}]
        named = {str(entry.get("name")): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("tool_use" if with_tools else "default", named.get("default"))
    if template is not None and not isinstance(template, str):
        raise TextError(f"the chat template in {folder} is not text; pull the model again")
    return template
