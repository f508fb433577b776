"""Takes experts away from tiny models, from each layer another number of them, as programs that prune models do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.tiny_models import text_of

_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_BLOCKS = ("mlp", "block_sparse_moe", "feed_forward", "mixer")
_APART = ("router", "experts")  # of a layer whose mlp is beside the experts


def uneven_counts(config: Mapping[str, Any], moe_layers: list[int]) -> dict[int, int]:
    """How many experts each decoder layer keeps; the second one with experts keeps all, the first does not."""
    c = text_of(config)
    most, step = num_experts(config), c.get("n_group") or 1
    fewer = (step, 0, 2 * step)
    return {layer: most - fewer[number % 3] for number, layer in enumerate(moe_layers)}


def num_experts(config: Mapping[str, Any]) -> int:
    c = text_of(config)
    return next(int(c[name]) for name in _COUNTS if c.get(name))


def moe_layers_of(tensors: Mapping[str, Any]) -> list[int]:
    """The decoder layers that have experts, by the names of tensors."""
    found = (re.search(r"layers\.(\d+)\..*(experts|input_linear)\b", name) for name in tensors)
    return sorted({int(layer[1]) for layer in found if layer})


def prune_tensors(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], counts: Mapping[int, int]
) -> dict[str, Tensor]:
    """A checkpoint without the last experts of its layers. counts: of decoder layers."""
    most, kept = num_experts(config), {}
    for name, tensor in tensors.items():
        layer = re.search(rf"layers\.(\d+)\.({'|'.join(_BLOCKS + _APART)})\.", name)
        count = counts.get(int(layer[1])) if layer else None
        expert = re.search(r"\.experts\.(\d+)\.", name)
        if count is None or "shared" in name:
            kept[name] = tensor
        elif expert is None:
            kept[name] = _cut(tensor, most, count)
        elif int(expert[1]) < count:
            kept[name] = tensor
    return kept


def _cut(tensor: Tensor, most: int, count: int) -> Tensor:
    """What is left of a tensor with a row for each expert, or with one row that has a number for each."""
    if tuple(tensor.shape) == (1, most):
        return tensor[:, :count].clone()
    return tensor[:count].clone() if tensor.shape[0] == most else tensor


def prune_model(model: nn.Module, counts: Mapping[int, int]) -> None:
    """The same of a model of transformers: a reference that computes without the experts that are gone."""
    for layer, count in counts.items():
        decoder: Any = getattr(model, "model", model)
        decoder = getattr(decoder, "language_model", decoder)
        own = decoder.layers[layer]
        names = _APART if hasattr(own, "router") else [next(name for name in _BLOCKS if hasattr(own, name))]
        most = num_experts(decoder.config.to_dict())
        for name, module in (found for each in names for found in getattr(own, each).named_modules()):
            if "shared" in name:
                continue
            for kinds in (module._parameters, module._buffers):
                for each, tensor in list(kinds.items()):
                    if tensor is not None and tensor.ndim:
                        cut = _cut(tensor.detach(), most, count)
                        kinds[each] = nn.Parameter(cut) if kinds is module._parameters else cut
            for attribute in _COUNTS:
                if isinstance(getattr(module, attribute, None), int):
                    setattr(module, attribute, count)


@torch.no_grad()
def varied(model: nn.Module) -> nn.Module:
    """Norms and biases that are not all alike."""
    torch.manual_seed(7)
    for name, parameter in (*model.named_parameters(), *model.named_buffers()):
        if "norm" in name or name.endswith("bias"):
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model
