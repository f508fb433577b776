"""Sarvam 105B: DeepSeek-V3 under field names of its own (SarvamMLA)."""

from __future__ import annotations

from moeinf.models.families.deepseek import deepseek_v3
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import Spec

_PUBLISHED = "deepseek_yarn"  # which is yarn
_UNSAID = {"n_group": 1, "topk_group": 1, "q_lora_rank": None}  # in published checkpoints


def _parse(f: Fields) -> Spec:
    shared = f.count_of("n_shared_experts", "num_shared_experts")
    future = f.get("num_nextn_predict_layers")
    f = f.replaced(n_shared_experts=shared, num_nextn_predict_layers=0 if future is None else future)
    f = f.replaced(**{name: value for name, value in _UNSAID.items() if name not in f})
    scaling = f.within("rope_scaling")
    if _PUBLISHED in (scaling.get("type"), scaling.get("rope_type")):
        kept = {name: scaling.get(name) for name in scaling.names if name != "type"}
        f = f.replaced(rope_scaling=kept | {"rope_type": "yarn"})
    return deepseek_v3.parse(f)


class Family(deepseek_v3.Family):
    name = "sarvam_mla"
    parse = staticmethod(_parse)
