"""Records what llama.cpp's converter makes of the towers of tiny checkpoints, as record.py does of their text.

python -m tests.support.converter.towers <folder of llama.cpp>
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from moeinf.gguf.header import read_gguf
from moeinf.models.family import family_of
from tests.support.converter.record import HF, numbered, summary
from tests.support.tiny_models import all_configs

SEEING_HF = {
    "glm4v_moe": "Glm4vMoeForConditionalGeneration",
    "glm5v": "Glm5vForConditionalGeneration",
    "kimi_k25": "KimiK25ForConditionalGeneration",
}
RECORDED = Path(__file__).with_name("recorded_towers.json")
NAMES = (
    "qwen3_5_moe",
    "qwen3_vl_moe",
    "gemma4",
    "gemma4 standardised, no bidirectional attention",
    "glm4v_moe",
    "glm5_next",
    "glm5v",
    "kimi_k25",
    "qwen4_exp",
    "mistral4",
    "mistral4 three patches a side, biased, silu",
    "llama4",
)


def tower(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A config, and the tensors of its tower."""
    config = (all_configs("SEEING") | all_configs("SEEING_FILES"))[name]
    return config, numbered(dict(sorted(family_of(config).seen_by.items())))


def as_published(vision: Mapping[str, Any]) -> dict[str, Any]:
    """With the fields of Kimi's under the names that the converter reads, beside those of transformers."""
    return {**vision, **{f"init_{name}": vision[name] for name in vision if name.startswith("pos_emb_")}}


def recorded() -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text())
    return found


def _convert(name: str, folder: Path) -> dict[str, Any]:
    import gguf
    from conversion import get_model_class  # type: ignore[import-not-found]

    config, tensors = tower(name)
    hf = SEEING_HF.get(config["model_type"]) or HF[family_of(config).name]
    said = config | {"architectures": [hf], "vision_config": as_published(config["vision_config"])}
    (folder / "config.json").write_text(json.dumps(said))
    mean, std = ([0.0] * 3, [1.0] * 3) if hf.startswith("Gemma") else ([0.5] * 3, [0.5] * 3)
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_mean": mean, "image_std": std}))
    mark = {"content": "[IMG_BREAK]", "id": 12}  # whose embedding one class looks for
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": [mark]}))
    (folder / "tokenizer_config.json").write_text("{}")
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "mmproj.gguf"
    with torch.inference_mode():
        get_model_class(hf, mmproj=True)(folder, gguf.LlamaFileType.MOSTLY_BF16, path, model_name=name).write()
    return summary(read_gguf(path))


def main() -> None:
    llama_cpp = Path(sys.argv[1])
    for name in [name for name in sys.modules if name.partition(".")[0] == "gguf"]:
        del sys.modules[name]  # the installed package, in front of which comes llama.cpp's own
    sys.path[:0] = [str(llama_cpp / "gguf-py")]
    sys.path.append(str(llama_cpp))
    found = {}
    for name in NAMES:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = _convert(name, Path(folder))
    lines = (f"{json.dumps(name)}: {json.dumps(each, separators=(',', ':'))}" for name, each in found.items())
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
