"""Architectures, one file per family, found by the model_type of config.json."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, Protocol, cast

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.models.registry import FAMILIES
from moeinf.types import DType, Experts, ModelInfo, Profiler, Prompting, TensorPlan

SUPPORTED = tuple(family.model_type for family in FAMILIES)
# num_experts, num_local_experts, n_routed_experts, moe_num_experts, num_moe_experts, moe_expert_num, ...; not those
# that all tokens share, nor how many a token uses.
_EXPERT_COUNT = re.compile(r"(\w+_)?(num|n)_((?!shared_|selected_|activated_)\w+_)?experts?|(\w+_)?experts?_num")
_MODULES = {name: family.module for family in FAMILIES for name in (family.model_type, *family.also)}


class Architecture(Protocol):
    """What the module of a family offers; docs/adding-a-model.md walks through one."""

    def tensor_plan(self, config: dict[str, Any]) -> TensorPlan:
        """The tensors that a checkpoint with this config.json has. Raises CheckpointError for a bad field."""
        ...

    def model_info(self, config: dict[str, Any], dtype: DType) -> ModelInfo: ...

    def build(self, config: dict[str, Any], layers: Any, experts: Experts, profiler: Profiler) -> Any:
        """The runnable model (models.decoder.Decoder) out of the layers (models.layers.Layers) of a device."""
        ...


def architecture(config: dict[str, Any]) -> Architecture:
    """The family of a parsed config.json.

    Raises CheckpointError where model_type is missing, UnsupportedModelError for a type that is not in SUPPORTED.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError("config.json has no model_type: not a Hugging Face checkpoint")
    if model_type in _MODULES:
        return cast(Architecture, import_module(f"moeinf.models.families.{_MODULES[model_type]}"))
    fault = "is not a Mixture-of-Experts model (config.json names no experts)"
    if _names_experts(config):
        fault = "is a Mixture-of-Experts family that this version does not run"
    raise UnsupportedModelError(f"{model_type!r:.100} {fault}; moeinf runs {', '.join(SUPPORTED)}")


def _names_experts(config: dict[str, Any]) -> bool:
    """Whether a config of any family, at any depth, counts experts that tokens are routed to."""
    values: list[Any] = [config]
    while values:
        value = values.pop()
        for name, inner in value.items() if isinstance(value, dict) else ():
            counts = inner if isinstance(inner, list) else [inner]  # one for all layers or kinds, or one for each
            if _EXPERT_COUNT.fullmatch(name[:100]) and any(type(count) is int and count > 1 for count in counts):
                return True
            values.append(inner)
        values += value if isinstance(value, list) else ()
    return False


def prompting(config: dict[str, Any]) -> Prompting | None:
    """Of an encoder-decoder model; None for one that goes on with a text. Raises as `architecture`."""
    of_family = getattr(architecture(config), "prompting", None)
    return None if of_family is None else cast(Prompting, of_family(config))


__all__ = ["SUPPORTED", "Architecture", "architecture", "prompting"]
