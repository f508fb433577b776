"""What a family computes with, as one mapping that two configs can be compared by."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from moeinf.models.family import family_of
from moeinf.models.layers.assemble import DecoderFamily


def declared(config: Mapping[str, Any]) -> Any:
    """What the family of a config.json has read in it."""
    family = family_of(dict(config))
    assert isinstance(family, DecoderFamily)
    return family.spec


def facts(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every number and flag in a dataclass, at any depth."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            if field.name not in (
                "stacked",
                "fused",
                "prefix",
                "head_prefix",
                "num_future_layers",
                "expert_factors",
                "parts",
                "padded_to",
            ):  # how tensors are named and stored
                yield from facts(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from facts(each, f"{path}[{key}]")
    elif isinstance(value, tuple | list):
        for number, each in enumerate(value):
            yield from facts(each, f"{path}[{number}]")
    elif isinstance(value, np.ndarray):
        yield path, value.tolist()
    elif path.endswith(".beyond") and callable(value):
        longer = value(1 << 14)
        yield f"{path}()", [*longer.frequencies.tolist(), longer.scale]
    elif isinstance(value, partial):
        yield from facts(value.args, f"{path}()")
        yield from facts(value.keywords, f"{path}()")
    elif callable(value):  # a router, or what makes a layer
        yield path, value.__qualname__
    else:
        yield path, value
