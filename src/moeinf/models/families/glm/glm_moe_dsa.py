"""GLM-5: DeepSeek-V3.2 whose layers may share what an indexer has chosen (GlmMoeDsaForCausalLM, arXiv 2603.12201)."""

from __future__ import annotations

from moeinf.errors import CheckpointError
from moeinf.models.families.deepseek import deepseek_v32
from moeinf.models.families.deepseek.deepseek_v32 import parse_indexed
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.assemble import Spec


def _parse(f: Fields) -> Spec:
    return parse_indexed(f, choosing_layers(f), norm_eps=1e-5, interleaved=True)


def choosing_layers(f: Fields) -> tuple[bool, ...]:
    """The layers with an indexer of their own, by whichever field tells it."""
    num_layers = f.count("num_hidden_layers", maximum=MOST_LAYERS)
    kinds = f.kinds("indexer_types", num_layers, "full", "shared")
    pattern = f.get("index_topk_pattern")
    if kinds is None and pattern is not None:
        letters = {"F": "full", "S": "shared"}
        listed = [letters.get(each, each) for each in pattern] if isinstance(pattern, str | list) else pattern
        kinds = f.replaced(index_topk_pattern=listed).kinds("index_topk_pattern", num_layers, "full", "shared")
    if kinds is not None:
        return tuple(kind == "full" for kind in kinds)
    every, begin = f.count("index_topk_freq", 1, minimum=0), f.count("index_skip_topk_offset", 2, minimum=0)
    choosing = tuple(max(i - begin + 1, 0) % max(every, 1) == 0 for i in range(num_layers))
    if not choosing[0]:
        raise CheckpointError(f"{f.where}: index_topk_freq and index_skip_topk_offset leave the first layer no indexer")
    return choosing


class Family(deepseek_v32.Family):
    name = "glm_moe_dsa"
    divisible = False
    parse = staticmethod(_parse)
