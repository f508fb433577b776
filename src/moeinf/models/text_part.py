"""The language model of a checkpoint that also sees images: its part of config.json, and where its tensors lie."""

from __future__ import annotations

from dataclasses import dataclass

from moeinf.models.fields import Fields
from moeinf.types import JsonObject

VISION = r"model\.visual\..*"  # the model of images, which is left out
_TIED = "tie_word_embeddings"
_QUANTISED = "quantization_config"  # said of the whole checkpoint
_OF_IMAGES = ("mrope_section", "mrope_interleaved", "interleaved")  # the last two mean the same


@dataclass(frozen=True, slots=True)
class TextIn:
    """Where checkpoints of a family that hold other models, too, have the language model."""

    prefix: str = "model.language_model."  # of every tensor name but the head's
    head_prefix: str = ""
    tied: bool = False  # what a config without tie_word_embeddings means


@dataclass(frozen=True, slots=True)
class TextPart:
    fields: Fields
    prefix: str  # of every tensor name but the head's


def text_part(config: JsonObject, prefix: str = "model.language_model.") -> TextPart:
    """Of a whole checkpoint, whose text_config it is, or of one where the language model alone was saved.

    prefix: of a whole checkpoint. Positions of text are plain: mrope gives every token three, which differ for images
    alone, so its fields are left out. Raises CheckpointError for a text_config that is no object.
    """
    Fields(config).within("text_config")
    nested: JsonObject | None = config.get("text_config")
    if nested is None:
        return TextPart(Fields(_without_mrope(config)), "model.")
    above = {name: value for name, value in config.items() if name == _QUANTISED}
    whole = nested | above | _tied(config, nested)
    return TextPart(Fields(_without_mrope(whole), "config.json: text_config"), prefix)


def _tied(config: JsonObject, nested: JsonObject) -> JsonObject:
    """Whether the embedding may be the head: where either object says so. Empty where neither says anything.

    They contradict each other in published checkpoints. What is stored decides: a head that differs from the embedding
    is a head, whatever they say, and where none is stored, the embedding is the head if any of them allows that.
    """
    places = (Fields(config), Fields(nested, "config.json: text_config"))
    said = [each.flag(_TIED, False) for each in places if each.get(_TIED) is not None]
    return {_TIED: any(said)} if said else {}


def _without_mrope(text: JsonObject) -> JsonObject:
    return {
        name: {key: v for key, v in value.items() if key not in _OF_IMAGES}
        if name in ("rope_parameters", "rope_scaling") and isinstance(value, dict)
        else value
        for name, value in text.items()
    }
