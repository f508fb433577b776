"""Every tensor of a published checkpoint has a place in the plan of its config.json, and the plan lacks none.

Names are those of the checkpoint's index, which has no shapes: each tensor is given the shape that the plan wants of
it. That these are the checkpoint's own is seen where the index says how many bytes all tensors have.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import pytest

from moeinf.errors import CheckpointError
from moeinf.models.family import family_of
from moeinf.models.registry import FAMILIES
from moeinf.pull.checkpoint.conversion_plan import plan_conversion
from moeinf.pull.checkpoint.tensor_names import Names
from moeinf.pull.coded.declared import declared_by
from moeinf.pull.source import SINGLE_FILE, Shards
from moeinf.store.format import Header, TensorEntry
from moeinf.types import TensorPlan
from tests.support.listed_tensors import FILE, LISTED, expanded, listing
from tests.support.true_configs import PUBLISHED

_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1}
_UNKNOWN = (1,)  # the shape of what the plan leaves out


def config_of(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((PUBLISHED / name / "config.json").read_text(encoding="utf-8"))
    return config


def plan_of(name: str) -> TensorPlan:
    plan: TensorPlan = family_of(config_of(name)).tensors
    return plan


def header_of(dtypes: Mapping[str, str], plan: TensorPlan) -> Header:
    """The header of a file with these tensors, in the shapes of the plan."""
    shapes = shapes_of(dtypes, plan)
    return {
        name: TensorEntry(name, dtype, shapes[name], 0, math.prod(shapes[name]) * _BYTES[dtype])
        for name, dtype in dtypes.items()
    }


def shapes_of(names: Mapping[str, str], plan: TensorPlan) -> dict[str, tuple[int, ...]]:
    called = Names(names, plan)
    planned = {name: called(name) for name in names}
    there = set(planned.values())
    known = {**plan.dense, **plan.vision} | {copy: plan.dense[of] for copy, of in plan.copies.items()}
    for layout in plan.experts:
        if layout.keys() <= there:
            known |= {name: shape for name, (shape, _) in layout.items()}
            break
    known |= {scales: known[blocks][:-1] for blocks, scales in plan.scales.items() if blocks in known}
    return {name: known.get(plan_name, _UNKNOWN) for name, plan_name in planned.items()}


@pytest.mark.parametrize("name", LISTED)
def test_the_reader_knows_every_tensor_of_a_published_checkpoint(name: str) -> None:
    plan, listed = plan_of(name), listing(name)
    header = header_of(listed.dtypes, plan)
    plan_conversion(plan, Shards((SINGLE_FILE,), None), {SINGLE_FILE: header}, declared=declared_by(config_of(name)))
    num_bytes = sum(entry.num_bytes for entry in header.values() if entry.shape != _UNKNOWN)
    if any(entry.shape == _UNKNOWN for entry in header.values()):
        assert 0 < num_bytes <= listed.total_size
    else:
        assert num_bytes == listed.total_size


@pytest.mark.parametrize("name", LISTED)
def test_a_tensor_less_or_more_is_noticed(name: str) -> None:
    plan, dtypes = plan_of(name), listing(name).dtypes
    header = header_of(dtypes, plan)
    shards, declared = Shards((SINGLE_FILE,), None), declared_by(config_of(name))
    known = [tensor for tensor, entry in header.items() if entry.shape != _UNKNOWN]
    norm = next(tensor for tensor in known if tensor.endswith("norm.weight"))
    less = {tensor: entry for tensor, entry in header.items() if tensor != norm}
    with pytest.raises(CheckpointError, match=re.escape(norm)):
        plan_conversion(plan, shards, {SINGLE_FILE: less}, declared=declared)
    more = norm.removesuffix("weight") + "offset"
    with pytest.raises(CheckpointError, match=re.escape(more)):
        plan_conversion(plan, shards, {SINGLE_FILE: {**header, more: header[norm]}}, declared=declared)


def test_a_pattern_stands_for_names() -> None:
    assert expanded("a.{0-2,5}.{up,down}") == ["a.0.up", "a.0.down", "a.1.up", "a.1.down", "a.2.up", "a.2.down",
                                               "a.5.up", "a.5.down"]  # fmt: skip
    assert expanded("lm_head.weight") == ["lm_head.weight"]


@pytest.mark.parametrize(("what", "file"), [("config.json", "config.json"), ("list of tensors", FILE)])
def test_the_families_are_told_of_which_nothing_published_is_here(what: str, file: str) -> None:
    here = {family_of(config_of(path.parent.name)).name for path in PUBLISHED.glob(f"*/{file}")}
    lacking = ", ".join(entry.model_type for entry in FAMILIES if entry.model_type not in here)
    readme = " ".join((PUBLISHED / "README.md").read_text(encoding="utf-8").split())
    assert f"No {what} of these families is here: {lacking}." in readme
