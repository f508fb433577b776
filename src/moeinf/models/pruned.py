"""Checkpoints whose layers were pruned to different numbers of experts, which their config.json does not say."""

from __future__ import annotations

import re
from collections.abc import Mapping

from moeinf.errors import CheckpointError
from moeinf.types import JsonObject, MoeShape, TensorPlan

_ROUTER = re.compile(r".*\blayers\.(\d+)\.(?:\w+\.)*(?:gate|router|router\.layer|router\.proj)\.weight")
_COUNTS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
)  # as decoders call them: see routed_shape


def routers_of(plan: TensorPlan) -> dict[str, int]:
    """The names of a decoder's routers, and the decoder layer of each. Their rows are experts, where not transposed."""
    rows = plan.moe.counts or (plan.moe.num_experts,)
    found = (
        (_ROUTER.fullmatch(name), name) for name, shape in plan.dense.items() if len(shape) == 2 and shape[0] in rows
    )
    return {name: int(layer[1]) for layer, name in found if layer is not None}


def pruned_config(config: JsonObject, said: MoeShape, rows: Mapping[int, int]) -> JsonObject | None:
    """The config with a list of the experts of each layer; None where that has nothing to add.

    said: what the config says. rows: those of the router of each decoder layer that has one. Raises CheckpointError
    where they contradict each other: pruning leaves layers with different numbers of experts, none with more.
    """
    wrong = [(layer, number) for number, layer in enumerate(rows) if rows[layer] != said.experts_of(number)]
    if len(rows) != said.num_layers or not wrong:  # the routers of some families are not found
        return None
    if said.counts or len(set(rows.values())) == 1 or max(rows.values()) > said.num_experts:
        layer, number = wrong[0]
        raise CheckpointError(
            f"config.json says {said.experts_of(number)} experts of layer {layer}, whose router has {rows[layer]}; "
            "correct it, or fetch the checkpoint again"
        )
    if "thinker_config" in config:
        return config | {"thinker_config": pruned_config(config["thinker_config"], said, rows)}
    nested = config.get("text_config")
    inner = config if nested is None else nested
    kinds = inner.get("layers_block_type") or ()  # Nemotron lists its layers, and may not count them
    counts = [rows.get(layer, 0) for layer in range(len(kinds) or inner["num_hidden_layers"])]
    listed = {name: counts for name in _COUNTS if inner.get(name) is not None}
    return config | (listed if nested is None else {"text_config": nested | listed})
