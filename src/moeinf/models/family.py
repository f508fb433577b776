"""The family of a config.json, by its model_type."""

from __future__ import annotations

import re
from difflib import get_close_matches
from importlib import import_module

from moeinf.errors import CheckpointError, UnsupportedModelError, UsageError
from moeinf.models.layers.assemble import DecoderFamily, EncoderDecoderFamily
from moeinf.models.refused import REFUSED, WITH_CODE
from moeinf.models.registry import MODULES, OF_ARCHITECTURES, SUPPORTED
from moeinf.types import Json, JsonObject

# num_experts, num_local_experts, n_routed_experts, moe_num_experts, num_moe_experts, moe_expert_num, ...; not those
# that all tokens share, nor how many a token uses.
_EXPERT_COUNT = re.compile(r"(\w+_)?(num|n)_((?!shared_|selected_|activated_)\w+_)?experts?|(\w+_)?experts?_num")


AnyFamily = DecoderFamily | EncoderDecoderFamily


def family_of(config: JsonObject) -> AnyFamily:
    """The family of a parsed config.json, and what that says.

    Raises CheckpointError where model_type is missing or a field is wrong, UnsupportedModelError for a type that is not
    in SUPPORTED and for a value that moeinf does not compute.
    """
    model_type = config.get("model_type") or next((OF_ARCHITECTURES.get(each) for each in _architectures(config)), None)
    if not isinstance(model_type, str):
        raise _without_type(config)
    if model_type == "mtp":  # moeinf's own: a layer of another family
        of = config.get("of")
        layer: AnyFamily = import_module("moeinf.models.mtp").Family(
            config, family_of(of if isinstance(of, dict) else {})
        )
        return layer
    if model_type in MODULES:
        family: AnyFamily = import_module(f"moeinf.models.families.{MODULES[model_type]}").Family(config)
        return family
    fault = "is a family without experts (config.json names none) that this version does not run"
    if _names_experts(config):
        fault = "is a Mixture-of-Experts family that this version does not run"
        if model_type in REFUSED:
            fault += f": it needs {REFUSED[model_type]}"
    raise UnsupportedModelError(f"{model_type!r:.100} {fault}; {_what_is_run(model_type)}")


def text_alone(config: JsonObject) -> JsonObject:
    """A config.json without the tower of its model."""
    return {name: value for name, value in config.items() if name != "vision_config"}


def _without_type(config: JsonObject) -> CheckpointError:
    named = _architectures(config)
    if not named:
        return CheckpointError("config.json has no model_type: not a Hugging Face checkpoint")
    known = next((f": {WITH_CODE[name]}" for name in named if name in WITH_CODE), "")
    return UnsupportedModelError(
        f"config.json has no model_type, only architectures, {named[0]!r:.100}, which this version does not "
        f"run{known}; docs/models.md has what is run"
    )


def _architectures(config: JsonObject) -> list[str]:
    said = config.get("architectures")
    return [name for name in said if isinstance(name, str)] if isinstance(said, list) else []


def check_writer(name: str, config: JsonObject, verb: str) -> None:
    """Raises UsageError for a model whose family reads a source before it writes, and as family_of."""
    if isinstance(family_of(config), EncoderDecoderFamily):
        raise UsageError(f"{name} reads a source before it writes; {verb} models that only write")


def _what_is_run(model_type: str) -> str:
    """The types with the most similar names; there are too many for a line."""
    near = get_close_matches(model_type[:100], SUPPORTED, n=3, cutoff=0.5)
    like = f" {' or '.join(repr(name) for name in near)}, and what else is in" if near else " what is in"
    return f"moeinf runs{like} docs/models.md"


def counts_experts(field: str) -> bool:
    """Whether a field of a config.json, of any family, has by its name a number of experts."""
    return _EXPERT_COUNT.fullmatch(field[:100]) is not None


def _names_experts(config: JsonObject) -> bool:
    """Whether a config of any family, at any depth, counts experts that tokens are routed to."""
    values: list[Json] = [config]
    while values:
        value = values.pop()
        for name, inner in value.items() if isinstance(value, dict) else ():
            counts = inner if isinstance(inner, list) else [inner]  # one for all layers or kinds, or one for each
            if counts_experts(name) and any(type(count) is int and count > 1 for count in counts):
                return True
            values.append(inner)
        values += value if isinstance(value, list) else ()
    return False
