"""JSON schemas in the words that llguidance knows, for keywords that it refuses and programs write unasked.

None of these answers is valid for the one schema and not for the other, but for a `discriminator`, whose property
OpenAPI requires (3.1, 4.8.25), and schemas do not where it has a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from moeinf.types import Json, JsonObject

# Beside which a schema's own properties are not all that it says of an object.
_IN_PLACE: Final = ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas")
_COMMENTS: Final = ("title", "description", "$comment", "examples", "default", "deprecated")
_SAYS_NOTHING: Final[Mapping[str, tuple[Json, ...]]] = {
    "uniqueItems": (False,),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
}


def in_known_words(schema: JsonObject) -> Json:
    """The same of one schema, whose parts are left as they are; False for one that nothing matches."""
    if "not" in schema and schema["not"] in (True, {}):  # zod's never
        return False
    made = {name: value for name, value in schema.items() if not _is_one_of(value, _SAYS_NOTHING.get(name, ()))}
    if made.get("unevaluatedProperties") is False and not any(name in made for name in _IN_PLACE):
        del made["unevaluatedProperties"]
        made.setdefault("additionalProperties", False)
    return _with_discriminator(_with_names(made))


def _is_one_of(value: Json, values: tuple[Json, ...]) -> bool:
    return any(type(value) is type(each) and value == each for each in values)


def _with_names(schema: JsonObject) -> JsonObject:
    """propertyNames, which zod writes for its records, as properties or patternProperties."""
    names = schema.get("propertyNames")
    said = _without(names, *_COMMENTS) if isinstance(names, dict) else {} if names is True else None
    if said is None or said.pop("type", "string") != "string":
        return schema
    made, others = _without(schema, "propertyNames"), schema.get("additionalProperties", {})
    if not said:
        return made
    if "patternProperties" in made:
        return schema
    if isinstance(listed := said.pop("enum", None), list) and not said:
        known = made.get("properties") or {}
        named = {name: known.get(name, others) for name in listed if isinstance(name, str)}
        return {**made, "properties": named, "additionalProperties": False}
    if isinstance(pattern := said.pop("pattern", None), str) and not said and not made.get("properties"):
        return {**made, "patternProperties": {pattern: others}, "additionalProperties": False}
    return schema


def _with_discriminator(schema: JsonObject) -> JsonObject:
    """The property that tells alternatives apart is there, also where it has a default, as pydantic's may have."""
    told, alternatives = schema.get("discriminator"), schema.get("oneOf")
    name = told.get("propertyName") if isinstance(told, dict) else None
    if not isinstance(name, str) or not isinstance(alternatives, list):
        return schema
    return {**schema, "oneOf": [{"allOf": [each, {"required": [name]}]} for each in alternatives]}


def _without(schema: JsonObject, *names: str) -> JsonObject:
    return {name: value for name, value in schema.items() if name not in names}
