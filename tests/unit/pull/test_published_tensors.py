"""Every tensor of a published checkpoint has a place in the plan of its config.json, and the plan lacks none.

Names are those of the checkpoint's index, which has no shapes: each tensor is given the shape that the plan wants of
it, or that the coding of the plan's matrix wants. That these are the checkpoint's own is seen where the index says how
many bytes all tensors have.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

import pytest

from moeinf.errors import CheckpointError
from moeinf.models.family import family_of
from moeinf.models.registry import FAMILIES
from moeinf.pull.checkpoint.conversion_plan import plan_conversion
from moeinf.pull.checkpoint.left_out import Follows
from moeinf.pull.checkpoint.tensor_names import Names
from moeinf.pull.coded.declared import Declared, declared_by
from moeinf.pull.source import SINGLE_FILE, Shards
from moeinf.store.format import Header, TensorEntry
from moeinf.types import TensorPlan
from tests.support.listed_tensors import FILE, LISTED, Listing, expanded, listing
from tests.support.true_configs import PUBLISHED

_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8, "I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E8M0": 1}
_UNKNOWN = (1,)  # the shape of what the plan leaves out


def plan_of(listed: Listing) -> TensorPlan:
    plan: TensorPlan = family_of(dict(listed.config)).tensors
    return plan


def header_of(listed: Listing, plan: TensorPlan) -> Header:
    """The header of a file with these tensors, in the shapes of the plan."""
    called = Names(listed.dtypes, plan)
    planned = {name: called(name) for name in listed.dtypes}
    dtypes = {planned[name]: dtype for name, dtype in listed.dtypes.items()}
    shapes = shapes_of(dtypes, plan, declared_by(listed.config))
    found = {name: shapes.get(plan_name, _UNKNOWN) for name, plan_name in planned.items()}
    return {
        name: TensorEntry(name, dtype, found[name], 0, math.prod(found[name]) * _BYTES[dtype])
        for name, dtype in listed.dtypes.items()
    }


def shapes_of(there: Mapping[str, str], plan: TensorPlan, declared: Declared) -> dict[str, tuple[int, ...]]:
    """Of what may be there by the plan's names, among them those of which coded matrices are made. there: the types."""
    known = {**plan.dense, **plan.vision} | {copy: plan.dense[of] for copy, of in plan.copies.items()}
    for layout in plan.experts:
        if all(name in there or f"{name}_packed" in there for name in layout):
            known |= {name: shape for name, (shape, _) in layout.items()}
            break
    known |= {scales: known[blocks][:-1] for blocks, scales in plan.scales.items() if blocks in known}
    shares = {each: len(source.rows) for name, source in plan.cut.items() for each in (name, source.name)}
    for name, source in plan.cut.items():
        if source.name in there:
            rows, cols = known.pop(name)
            known[source.name] = (known.get(source.name, (0,))[0] + rows, cols)
    for name, shape in list(known.items()):
        if there.get(name) == "F8_E4M3":
            (rows, cols), (high, wide), count = shape, declared.tile or shape, shares.get(name, 1)
            scale = f"{name}_scale"
            known[scale if scale in there else f"{scale}_inv"] = (count * -(-rows // count // high), -(-cols // wide))
        elif (there.get(name), there.get(f"{name}_scale")) in (("U8", "U8"), ("I8", "F8_E8M0")):
            known[name], known[f"{name}_scale"] = (shape[0], shape[1] // 2), (shape[0], shape[1] // 32)
        args = declared.args_of(name)
        if args is not None and args.group_size and f"{name}_packed" in there:
            word = 8 * _BYTES[there[f"{name}_packed"]]
            known[f"{name}_packed"] = (*shape[:-1], shape[-1] * args.bits // word)
            known[f"{name}_scale"] = (*shape[:-1], shape[-1] // args.group_size)
            known[f"{name}_shape"] = (len(shape),)
    return known


@pytest.mark.parametrize("name", LISTED)
def test_the_reader_knows_every_tensor_of_a_published_checkpoint(name: str) -> None:
    listed = listing(name)
    plan = plan_of(listed)
    header = header_of(listed, plan)
    plan_conversion(plan, Shards((SINGLE_FILE,), None), {SINGLE_FILE: header}, declared=declared_by(listed.config))
    num_bytes = sum(entry.num_bytes for entry in header.values() if entry.shape != _UNKNOWN)
    if any(entry.shape == _UNKNOWN for entry in header.values()):
        assert 0 < num_bytes <= listed.total_size
    else:
        assert num_bytes == listed.total_size


@pytest.mark.parametrize("name", LISTED)
def test_a_tensor_less_or_more_is_noticed(name: str) -> None:
    listed = listing(name)
    plan = plan_of(listed)
    header = header_of(listed, plan)
    shards, declared = Shards((SINGLE_FILE,), None), declared_by(listed.config)
    known = [tensor for tensor, entry in header.items() if entry.shape != _UNKNOWN]
    norm = next(tensor for tensor in known if tensor.endswith("norm.weight"))
    less = {tensor: entry for tensor, entry in header.items() if tensor != norm}
    with pytest.raises(CheckpointError, match=r"lacks tensor '[\w.]*norm\.weight'"):
        plan_conversion(plan, shards, {SINGLE_FILE: less}, declared=declared)
    more = norm.removesuffix("weight") + "offset"
    with pytest.raises(CheckpointError, match=re.escape(more)):
        plan_conversion(plan, shards, {SINGLE_FILE: {**header, more: header[norm]}}, declared=declared)


def test_tables_of_frequencies_that_no_program_reads_are_not_compared() -> None:
    """Kimi K2's, which are those of larger heads; DeepSeek-V3's would be."""
    listed = listing("kimi-k2")
    tables = [name for name in listed.dtypes if name.endswith("rotary_emb.inv_freq")]
    for model_type, compared in (("kimi_k2", 0), ("deepseek_v3", len(tables))):
        config = {**listed.config, "model_type": model_type}
        plan = family_of(config).tensors
        header = header_of(listed, plan)
        made = plan_conversion(
            plan, Shards((SINGLE_FILE,), None), {SINGLE_FILE: header}, declared=declared_by(listed.config)
        )
        moves = made.moves[SINGLE_FILE]
        assert len(tables) == 61 and sum(isinstance(move.transform, Follows) for move in moves) == compared


@pytest.mark.parametrize("name", ["gemma-4-26b-a4b", "llama-4-scout"])
def test_experts_that_were_published_in_one_tensor_may_lie_apart(name: str) -> None:
    """As programs that quantise store them."""
    plan = family_of(json.loads((PUBLISHED / name / "config.json").read_text())).tensors
    apart = [name for layout in plan.experts for name in layout if name.endswith(".experts.1.down_proj.weight")]
    assert len(apart) == plan.moe.num_layers


def test_a_pattern_stands_for_names() -> None:
    assert expanded("a.{0-2,5}.{up,down}") == ["a.0.up", "a.0.down", "a.1.up", "a.1.down", "a.2.up", "a.2.down",
                                               "a.5.up", "a.5.down"]  # fmt: skip
    assert expanded("lm_head.weight") == ["lm_head.weight"]


@pytest.mark.parametrize(("what", "file"), [("config.json", "config.json"), ("list of tensors", FILE)])
def test_the_families_are_told_of_which_nothing_published_is_here(what: str, file: str) -> None:
    if file == FILE:
        configs = [dict(listing(name).config) for name in LISTED]
    else:
        configs = [json.loads(path.read_text(encoding="utf-8")) for path in PUBLISHED.glob(f"*/{file}")]
    here = {family_of(config).name for config in configs}
    lacking = ", ".join(entry.model_type for entry in FAMILIES if entry.model_type not in here)
    readme = " ".join((PUBLISHED / "README.md").read_text(encoding="utf-8").split())
    assert f"No {what} of these families is here: {lacking}." in readme
