"""Records how far each family is from its reference; docs/generate_models.py makes a table of it.

    python -m tests.support.pairs.record [MODEL_TYPE ...]

Without names all families are compared, which takes some minutes; with names the others stay as they were recorded.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from moeinf.models.family import family_of
from moeinf.models.registry import SUPPORTED
from tests.support.converter.record import NAMES
from tests.support.own_gguf import WRITTEN
from tests.support.pairs import decoders, translators
from tests.support.tiny_models import all_configs

SAME_FILES = {  # as whose GGUF they come
    "kimi_k2": "deepseek_v3",
    "kimi_k25": "deepseek_v3",
    "glm4v_moe": "glm4_moe",
    "glm5v": "glm_moe_dsa",
    "mimo_v2": "mimo_v2_flash",
    "mistral": "llama",
}
RECORDED = Path(__file__).parents[3] / "docs" / "parity.json"


def from_gguf() -> set[str]:
    """The families whose tiny checkpoints llama.cpp's converter has written, or a writer of ours by its names."""
    configs = all_configs()
    written = {configs[name]["model_type"] for name in NAMES}
    written |= {*WRITTEN, "kimi_k3"}
    return written | {name for name, other in SAME_FILES.items() if other in written}


def seeing() -> set[str]:
    return {family_of(config).name for config in all_configs("SEEING").values()}


def keeps_layers_ahead(config: dict[str, Any]) -> bool:
    """Whether layers of a checkpoint that predict further tokens (MTP) are kept."""
    said = {"num_nextn_predict_layers": 1}
    if "text_config" in config:
        said["text_config"] = config["text_config"] | said
    return bool(family_of(config | said).tensors.ahead)


@torch.inference_mode()
def compared(model_type: str) -> dict[str, Any]:
    """Over all tiny configs of the family: the largest difference, beside the least spread of the reference's logits.

    Raises AssertionError where greedy tokens differ.
    """
    found: dict[str, Any] = defaultdict(list)
    configs: list[dict[str, Any]] = []
    for of in (decoders, translators):
        for config in (each for each in of.CONFIGS.values() if each["model_type"] == model_type):
            with tempfile.TemporaryDirectory() as folder:
                pair = of.Pair(config, Path(folder))
                theirs = of.their_logits(pair)
                chunks = [decoders.PROMPT] if of is decoders else [[token] for token in translators.ANSWER]
                found["difference"].append(float((of.logits(pair.ours, chunks) - theirs).abs().max()))
                found["spread"].append(float(theirs.std()))
                wanted = pair.their_tokens if of is decoders else translators.their_tokens(pair)
                ours = of.our_tokens(pair)
                assert ours == wanted, f"{model_type}: {ours} instead of {wanted}"
                found["tokens"].append(len(ours))
            configs.append(pair.config)
    return {
        "configs": len(configs),
        "difference": float(f"{max(found['difference']):.1e}"),
        "spread": float(f"{min(found['spread']):.2g}"),
        "tokens": sum(found["tokens"]),
        "gguf": model_type in from_gguf(),
        "pictures": model_type in seeing(),
        "ahead": any(map(keeps_layers_ahead, configs)),
    }


def main() -> None:
    kept = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    for name in sys.argv[1:] or SUPPORTED:
        kept[name] = compared(name)
        print(name, kept[name], flush=True)
    lines = [f"  {json.dumps(name)}: {json.dumps(kept[name])}" for name in SUPPORTED if name in kept]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
