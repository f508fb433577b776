"""Chat templates of moeinf's own, for models whose makers publish none, but code that writes chats, or words on it.

They are in data/chat_templates, and write what that code does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from moeinf.errors import MALFORMED
from moeinf.store.manifest import ModelSource
from moeinf.types import JsonObject

OWN_NOTE: Final = "chat template: moeinf's own, as the model comes without one"
_FOLDER: Final = Path(__file__).parents[2] / "data" / "chat_templates"
_HEAD: Final = "{#- moeinf's own template. "
_PARTS: Final[Mapping[str, tuple[str, ...]]] = {  # of a template, by model_type
    "deepseek_v32": ("deepseek_v32",),
    "deepseek_v4": ("deepseek_v4_preview_effort", "deepseek_v4"),
    "deepseek_v41": ("deepseek_v41",),
    "kimi_k3": ("kimi_k3",),
}
# Of models that share their model_type with others: that of a checkpoint or of its GGUF files, and what names have.
_NAMED: Final = ((("mixtral", "mistral", "llama"), re.compile(r"wizardlm[-_ ]?2(?!\d)", re.IGNORECASE), "wizardlm_2"),)
# What code says that writes chats otherwise, and the part that differs then.
_LATER: Final = {"deepseek_v4_preview_effort": ("Reasoning Effort: Beyond maximum", "deepseek_v4_effort")}
_BASE: Final = re.compile(r"(?<![a-z])base(?![a-z])", re.IGNORECASE)


def own_template(files: Mapping[str, bytes], called: str, code: str = "") -> str:
    """The template for a model whose files have none; "" where there is none of its family, or it is a base model.

    files: config.json, tokenizer_config.json and whatever else is beside the weights. called: by which names the model
    goes, of which those of base models say so. code: that writes chats in its checkpoint. It is searched, and not run.
    """
    model_type = str(_object(files, "config.json").get("model_type"))
    if not is_for(model_type, called) or has_template(files):
        return ""
    later = {part: other for part, (words, other) in _LATER.items() if words in code}
    parts = (later.get(part, part) for part in _parts_of(model_type, called))
    return "".join((_FOLDER / f"{part}.jinja").read_text(encoding="utf-8") for part in parts)


def is_for(model_type: str, called: str) -> bool:
    """Whether there is one for models of a family that go by such names."""
    return bool(_parts_of(model_type, called)) and not _BASE.search(called)


def _parts_of(model_type: str, called: str) -> tuple[str, ...]:
    named = (part for types, names, part in _NAMED if model_type in types and names.search(called))
    return _PARTS.get(model_type) or tuple(named)


def names_of(source: ModelSource) -> str:
    """By which names the model of a source goes."""
    return f"{source.location.rpartition('/')[2]} {source.file}"


def is_own(template: str) -> bool:
    """Whether a template is one of these."""
    return template.startswith(_HEAD)


def has_template(files: Mapping[str, bytes]) -> bool:
    """Whether the files of a model have a chat template."""
    named = {"chat_template.jinja", "chat_template.json"} & files.keys()
    return bool(named or _object(files, "tokenizer_config.json").get("chat_template"))


def _object(files: Mapping[str, bytes], name: str) -> JsonObject:
    try:
        value = json.loads(files.get(name, b"{}"))
    except MALFORMED:
        return {}  # whoever reads the file for what it says tells of it
    return value if isinstance(value, dict) else {}
