"""What a stored model is and can do. Reads small files only, and loads nothing heavy."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from moeinf.errors import StoreError
from moeinf.gguf.gguf_vision import family_may_see
from moeinf.models.family import family_of
from moeinf.store.files import errors_named, parse_json_object, read_small
from moeinf.store.formats import formats_text as stored_formats
from moeinf.text.templates.file import find_template
from moeinf.types import JsonObject

if TYPE_CHECKING:
    from moeinf.store.library import StoredModel
    from moeinf.text.thinking_text import TemplateFacts


def config(model: StoredModel) -> JsonObject:
    """config.json of the model. Raises StoreError."""
    path = model.path / "config.json"
    with errors_named(path):
        return parse_json_object(read_small(path), str(path), StoreError)


def json_file(model: StoredModel, name: str) -> JsonObject:
    """A small JSON file of the model; {} where it is missing or not an object."""
    try:
        value = json.loads((model.path / name).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def formats_text(model: StoredModel) -> str:
    """`BF16`, or `q4_k experts, q4_k dense, q8_0 head`."""
    text, dtype = stored_formats(model.manifest), model.manifest.info.dtype
    return text.upper() if text == dtype else text


def generation_parameters(model: StoredModel) -> JsonObject:
    """The sampling options that the checkpoint recommends."""
    return {
        name: value
        for name, value in json_file(model, "generation_config.json").items()
        if isinstance(value, int | float) and not name.endswith("_token_id")
    }


def licence_text(model: StoredModel) -> str:
    """The licence file of the checkpoint, "" if it brought none."""
    for path in sorted(model.path.iterdir()):
        if path.name.lower().startswith(("license", "licence", "copying")):
            return path.read_text(encoding="utf-8", errors="replace")
    return ""


def template_text(model: StoredModel, *, with_tools: bool = False) -> str:
    """The chat template, "" for a base model. with_tools: the one for chats with tools. Raises TextError."""
    return find_template(model.path, json_file(model, "tokenizer_config.json"), with_tools=with_tools) or ""


def template_facts(model: StoredModel) -> TemplateFacts | None:
    """What the chat template can be told; None for a base model. Raises TextError."""
    source = template_text(model)
    if not source:
        return None
    from moeinf.text.templates.template_facts import read_facts  # imports jinja2, which nothing else here needs

    return read_facts(source)


def why_no_vision(model: StoredModel) -> str:
    """Why a model takes no pictures, with the remedy where there is one; "" where it does."""
    manifest = model.manifest
    if manifest.vision_bytes:
        return ""
    if manifest.in_place is not None or manifest.source.kind == "file" or manifest.source.file:
        return _no_mmproj(model)
    if told := next((line for line in manifest.fallbacks if "vision tower" in line), ""):
        return f"{model.name} takes text alone: {told}"
    family = family_of(config(model))
    if family.vision is None:
        return f"{model.name} takes text alone: {family.no_vision}"
    return f"{model.name} was stored without its vision tower: `moeinf pull` it again, if its checkpoint has one"


def _no_mmproj(model: StoredModel) -> str:
    """Of a model of GGUF files, whose tower is a file of its own."""
    if not family_may_see(family_of(config(model)).name):
        return f"{model.name} takes text alone: moeinf runs the text of this family alone"
    source = model.manifest.source
    again = f"{source.location}{':' if source.file else ''}{source.file}"
    return (
        f"{model.name} was stored without a vision tower, which is a file of its own: "
        f"`moeinf pull {again} --mmproj FILE`"
    )


def capabilities(model: StoredModel) -> list[str]:
    """What the architecture does and the chat template knows of, in the words of ollama where it has some."""
    kind = family_of(config(model)).encoder_input
    if kind is not None:
        return ["translation" if kind.languages else "text to text"]
    facts = template_facts(model)
    sees = ["vision"] if model.manifest.vision_bytes else []
    extra = {"tools": facts.tools, "thinking": facts.thinks} if facts else {}
    return ["completion", *sees, *(name for name, known in extra.items() if known)]
