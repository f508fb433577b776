"""What a stored model is and can do. Reads small files only, and loads nothing heavy."""

from __future__ import annotations

import json
from collections.abc import Set
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from moeinf.errors import StoreError, UsageError
from moeinf.gguf.gguf_vision import family_may_see
from moeinf.models.family import AnyFamily, family_of, text_alone
from moeinf.store.files import errors_named, parse_json_object, read_small
from moeinf.store.format import read_header
from moeinf.store.formats import formats_text as stored_formats
from moeinf.store.library import StoredModel
from moeinf.text.templates.file import find_template
from moeinf.types import Json, JsonObject

if TYPE_CHECKING:
    from pathlib import Path

    from moeinf.engine.completion import Pooling
    from moeinf.store.manifest import Manifest, ModelSource
    from moeinf.text.thinking_text import TemplateFacts

_MOST_KEPT = 64  # models whose facts are kept: an id stands for the content, so that they stay true


def config(model: StoredModel) -> JsonObject:
    """config.json of the model. Raises StoreError."""
    path = model.path / "config.json"
    with errors_named(path):
        return parse_json_object(read_small(path), str(path), StoreError)


def family_as_stored(model: StoredModel, config_json: JsonObject) -> AnyFamily:
    """The family as which a model is read. What an older version stored, to which the family saw nothing, is its text.

    Raises StoreError, UnsupportedModelError.
    """
    family = family_of(config_json)
    if family.vision is None or model.manifest.vision_bytes:
        return family
    alone = family_of(text_alone(config_json))
    of_pictures = family.tensors.dense.keys() - alone.tensors.dense.keys()
    return alone if of_pictures and not of_pictures & _dense_names(model) else family


def _dense_names(model: StoredModel) -> Set[str]:
    in_place = model.manifest.in_place
    if in_place is not None:
        return {place.name for place in in_place.dense}
    with errors_named(model.dense_path):
        return read_header(model.dense_path, StoreError).keys()


def json_file(model: StoredModel, name: str) -> JsonObject:
    """A small JSON file of the model; {} where it is missing or not an object."""
    value = _json_of(model, name)
    return value if isinstance(value, dict) else {}


def _json_of(model: StoredModel, name: str) -> Json:
    try:
        return json.loads((model.path / name).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


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


class StoredFacts:
    """What a model can do. Each of its small files is read when it is first asked for, and once."""

    def __init__(self, stored: StoredModel) -> None:
        self.name, self._stored = stored.name, stored

    @cached_property
    def family(self) -> AnyFamily:
        """Raises StoreError, UnsupportedModelError."""
        return family_as_stored(self._stored, config(self._stored))

    @cached_property
    def context_length(self) -> int:
        """Raises StoreError."""
        return self._manifest().info.context_length

    @cached_property
    def pooling(self) -> Pooling:
        """How the states of a text's tokens become its vector: as the model says, else their mean.

        Raises UsageError for a way that is not known here.
        """
        said = config(self._stored).get("pooling") or _pooling_of(json_file(self._stored, "1_Pooling_config.json"))
        said = "+".join([str(said), *_further(_json_of(self._stored, "modules.json"))])
        if said not in ("mean", "last"):
            raise UsageError(f"{self.name} makes embeddings by {said!r:.60}, which is not supported; ask another model")
        return "last" if said == "last" else "mean"

    @cached_property
    def template(self) -> str:
        """The chat template, "" for a base model. Raises TextError."""
        return self._template_file(with_tools=False)

    @cached_property
    def template_with_tools(self) -> str:
        """The one for chats with tools. Raises TextError."""
        return self._template_file(with_tools=True)

    @cached_property
    def template_facts(self) -> TemplateFacts | None:
        """What the chat template can be told; None for a base model. Raises TextError."""
        if not self.template:
            return None
        from moeinf.text.templates.template_facts import read_facts  # imports jinja2, which nothing else here needs

        return read_facts(self.template)

    @cached_property
    def why_no_vision(self) -> str:
        """Why the model takes no pictures, with the remedy where there is one; "" where it does. Raises StoreError."""
        manifest, name = self._manifest(), self.name
        if manifest.vision_bytes:
            return ""
        if manifest.in_place is not None or manifest.source.kind == "file" or manifest.source.file:
            return self._no_mmproj(manifest.source)
        if told := next((line for line in manifest.formats.fallbacks if "vision tower" in line), ""):
            return f"{name} takes text alone: {told}"
        family = family_of(config(self._stored))
        if family.vision is None:
            return f"{name} takes text alone: {family.no_vision}"
        return f"{name} was stored without its vision tower: `moeinf pull` it again, if its checkpoint has one"

    @cached_property
    def capabilities(self) -> tuple[str, ...]:
        """What the architecture does and the chat template knows of, in the words of ollama where it has some.

        Raises StoreError, and TextError for a chat template that cannot be read.
        """
        kind = self.family.encoder_input
        if kind is not None:
            return ("translation" if kind.languages else "text to text",)
        facts = self.template_facts
        sees = ["vision"] if self._manifest().vision_bytes else []
        extra = {"tools": facts.tools, "thinking": facts.thinks} if facts else {}
        return ("completion", *sees, *(name for name, known in extra.items() if known))

    def _manifest(self) -> Manifest:
        """Not kept with the facts: that of a large model takes megabytes."""
        return replace(self._stored).manifest

    def _template_file(self, *, with_tools: bool) -> str:
        path, settings = self._stored.path, json_file(self._stored, "tokenizer_config.json")
        return find_template(path, settings, with_tools=with_tools) or ""

    def _no_mmproj(self, source: ModelSource) -> str:
        """Of a model of GGUF files, whose tower is a file of its own."""
        if not family_may_see(self.family.name):
            return f"{self.name} takes text alone: moeinf runs the text of this family alone"
        again = f"{source.location}{':' if source.file else ''}{source.file}"
        return (
            f"{self.name} was stored without a vision tower, which is a file of its own: "
            f"`moeinf pull {again} --mmproj FILE`"
        )


def _pooling_of(said: JsonObject) -> str:
    """In the words of Pooling, of a file of sentence-transformers; an empty one says mean."""
    prefix, words = "pooling_mode_", {"mean_tokens": "mean", "lasttoken": "last"}
    modes = [name.removeprefix(prefix) for name, value in said.items() if name.startswith(prefix) and value is True]
    return "+".join(words.get(mode, mode) for mode in modes or [str(said.get("pooling_mode", "mean"))])


def _further(modules: Json) -> list[str]:
    """What a model of sentence-transformers does with the vector that its pooling makes, but for its length."""
    listed = modules if isinstance(modules, list) else []
    kinds = [str(each.get("type")).rpartition(".")[2] for each in listed if isinstance(each, dict)]
    return [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]


def facts_of(stored: StoredModel) -> StoredFacts:
    """The facts of a model that many requests ask about, which are read once."""
    return _facts(stored.name, stored.id, stored.path)


@lru_cache(_MOST_KEPT)
def _facts(name: str, identifier: str, path: Path) -> StoredFacts:
    return StoredFacts(StoredModel(name, identifier, path))
