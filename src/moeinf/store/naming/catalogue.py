"""The models that moeinf knows by name, and the forms in which each is published.

A form's name is the model's with a tag behind it, as ollama's users write them: `mixtral:8x7b-q4_K_M`, `olmoe:q8_0`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from moeinf.store.manifest import ModelSource
from moeinf.store.naming.names import DEFAULT_TAG, has_tag, repository_source

DATA: Final = Path(__file__).parents[2] / "data"
MODELS = DATA / "models.json"
_TAG: Final = re.compile(r"(ud-)?(i?q\d|tq\d|mxfp4|nvfp4|fp4|fp8|int4|int8|awq|gptq|bf16|f16|fp16|f32)[\w-]*")


@dataclass(frozen=True, slots=True)
class KnownModel:
    name: str  # "mixtral:8x7b"
    checkpoint: ModelSource
    quantised: tuple[ModelSource, ...] = ()  # checkpoints of its maker in fewer bits
    gguf: tuple[ModelSource, ...] = ()  # repositories of GGUF files, the best first
    also: tuple[str, ...] = ()  # other names of it
    dense: bool = False  # without experts
    like: str = ""  # the published config.json that it has: a key of model_sizes.json; "" where none is known

    @property
    def sources(self) -> tuple[ModelSource, ...]:
        return (self.checkpoint, *self.quantised, *self.gguf)

    def form_name(self, tag: str) -> str:
        return form_name(self.name, tag)


def form_name(name: str, tag: str) -> str:
    """The name of one form of a model, by a name of the model: `mixtral:8x7b-q4_k_m`, `olmoe:q8_0`."""
    return f"{name}{'-' if has_tag(name) else ':'}{tag.lower()}"


@cache
def catalogue() -> Mapping[str, KnownModel]:
    """By each of their names, in lower case."""
    given: dict[str, dict[str, object]] = json.loads(MODELS.read_text())
    models = (_known(name, of_it) for name, of_it in given.items())
    return {name: model for model in models for name in (model.name, *model.also)}


def known_model(name: str) -> KnownModel | None:
    """Of a name in any capitals, with or without the tag `latest`."""
    return catalogue().get(name.lower().removesuffix(f":{DEFAULT_TAG}"))


def known_source(repo: str) -> KnownModel | None:
    """The model of which a repository of the Hub has a form."""
    wanted = repo.lower()
    models = catalogue().values()
    return next((model for model in models if wanted in (each.location.lower() for each in model.sources)), None)


def known_checkpoint(word: str) -> KnownModel | None:
    """The model whose checkpoint has this name, whoever it is that has quantised it: `Mixtral-8x7B-Instruct-v0.1`."""
    wanted = word.lower()
    models = catalogue().values()
    return next((model for model in models if model.checkpoint.location.rpartition("/")[2].lower() == wanted), None)


def sources_of(checkpoint: ModelSource) -> tuple[ModelSource, ...]:
    """Those of all forms of a known model, by its checkpoint; of any other source itself alone."""
    of_it = (model.sources for model in catalogue().values() if model.checkpoint == checkpoint)
    return tuple(dict.fromkeys(each for sources in of_it for each in sources)) or (checkpoint,)


def known_form(name: str) -> tuple[KnownModel, str] | None:
    """The model and the tag of its form that a name has; None for a name that has none, or whose model is not known.

    `mixtral:8x7b-q4_K_M` and `mixtral:q4_K_M` both mean the form q4_k_m of the model that `mixtral` means.
    """
    for cut in re.finditer("[-:]", name.lower()):
        model, tag = known_model(name[: cut.start()]), name[cut.end() :].lower()
        if model is not None and _TAG.fullmatch(tag):
            return model, tag
    return None


def _known(name: str, given: Mapping[str, object]) -> KnownModel:
    if "embedded" in given:
        return KnownModel(name, ModelSource("embedded", str(given["embedded"])))
    [checkpoint], quantised, gguf = (_sources(given.get(kind, [])) for kind in ("checkpoint", "quantised", "gguf"))
    also = given.get("also", [])
    assert isinstance(also, list)
    return KnownModel(
        name, checkpoint, quantised, gguf, tuple(also), bool(given.get("dense")), str(given.get("like", ""))
    )


def _sources(given: object) -> tuple[ModelSource, ...]:
    found = [repository_source(each) for each in ([given] if isinstance(given, str) else given)]  # type: ignore[attr-defined]
    return tuple(each for each in found if each is not None)
