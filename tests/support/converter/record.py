"""Records what llama.cpp's converter makes of tiny checkpoints, which tests/unit/gguf/test_converter.py compares with.

    python -m tests.support.converter.record <folder of llama.cpp> [<name of a config> ...]

Without names, all are recorded anew. For each config: the metadata, and of every tensor its type, shape and a digest.
The weights are numbers that every version of every library makes again, so the checkpoints themselves need not be kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from torch import Tensor

from moeinf.gguf.header import Gguf, read_gguf
from moeinf.models.family import family_of
from tests.support import hybrid_gguf
from tests.support.converter.published import ARCHITECTURES, as_published, fp4, published
from tests.support.converter.recorded import RECORDED, recorded
from tests.support.tiny_models import all_configs

NAMES = (
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5_moe",
    "qwen3_5_moe tied",
    "deepseek_v2 lite",
    "deepseek_v2 groups, compressed queries",
    "deepseek_v3",
    "glm4_moe",
    "glm4_moe air, groups",
    "gpt_oss",
    "granitemoe",
    "olmoe",
    "phimoe",
    "phimoe long, sliding window",
    "arctic",
    "qwen3_vl_moe",
    "dots1",
    "minimax_m2",
    "ernie4_5_moe",
    "ernie4_5_moe untied, dense layers, nothing shared",
    "exaone_moe",
    "exaone_moe groups, listed layers",
    "gemma4",
    "gemma4 without experts",
    "gemma4 untied, biased, keys and values apart",
    *hybrid_gguf.NAMES,
    *ARCHITECTURES,
)
_DRAWN = {  # behind all others, in this order, and those of a pattern with layers layer by layer
    "arctic": (r"layers\.(?P<layer>\d+)\.(block_sparse_moe|residual)",),
    "deepseek_v32": (r"\.indexer\.", r"\.mlp\."),
    "deepseek_v4": ("tid2eid",),
    "glm5_next": (r"indexer\.(?!index_kpool)", "kpool_compress_ape", "kpool_compress_gate", r"\.hc_", r"\.mlp\."),
    "glm_moe_dsa": (r"\.indexer\.", r"\.mlp\."),
    "hy_v4": (r"\.indexer\.", "hc_", r"\.mlp\."),
    "minimax_m3_vl": (r"\.index_", r"\.(mlp|block_sparse_moe)\."),
    "qwen4_exp": (
        r"layers\.(?P<layer>\d+)\.(self_attn|linear_attn|\w+_hyper)",
        "hyper_connection_mixer",
        r"\.mlp\.",
        r"\.ple\.",
    ),
}
_SECOND_LAYOUT = (
    "gpt_oss",
    "hy_v4",
    "mistral4",
)  # not MXFP4, and not an expert apart, of which the converter knows nothing
HF = {
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "phimoe": "PhiMoEForCausalLM",
    "arctic": "ArcticForCausalLM",
    "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
    "dots1": "Dots1ForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "exaone_moe": "ExaoneMoEForCausalLM",
    "gemma4": "Gemma4ForConditionalGeneration",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "lfm2_moe": "Lfm2MoeForCausalLM",
    "jamba": "JambaForCausalLM",
    "bailing_moe": "BailingMoeForCausalLM",
    "afmoe": "AfmoeForCausalLM",
    "bailing_hybrid": "BailingMoeV3ForCausalLM",
    "cohere2_moe": "Cohere2MoeForCausalLM",
    "dbrx": "DbrxForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "deepseek_v4": "DeepseekV4ForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "glm5_next": "Glm5NextForConditionalGeneration",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
    "granitemoe_swa": "GraniteMoeSWAForCausalLM",
    "granitemoeshared": "GraniteMoeSharedForCausalLM",
    "hunyuan_v1_moe": "HunYuanMoEV1ForCausalLM",
    "hy_v3": "HYV3ForCausalLM",
    "hy_v4": "HYV4ForCausalLM",
    "kimi_linear": "KimiLinearForCausalLM",
    "laguna": "LagunaForCausalLM",
    "llama4": "Llama4ForConditionalGeneration",
    "mellum": "MellumForCausalLM",
    "mimo_v2_flash": "MiMoV2FlashForCausalLM",
    "minimax_m3_vl": "MiniMaxM3SparseForConditionalGeneration",
    "mistral4": "Mistral3ForConditionalGeneration",
    "qwen4_exp": "Qwen4ExpForConditionalGeneration",
    "solar_open": "SolarOpenForCausalLM",
    "step3p7": "Step3p5ForCausalLM",
    "smallthinker": "SmallThinkerForCausalLM",
    "deepseek": "DeepseekForCausalLM",
    "maple": "MapleForCausalLM",
    "deepseek_ocr2": "DeepseekOCRForCausalLM",
    "minimax": "MiniMaxText01ForCausalLM",
    "minicpm": "MiniCPMForCausalLM",
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "glm": "GlmForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
}


def checkpoint(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A config, and the tensors that it implies, of multiples of 1/128 in bf16, and of whole numbers."""
    config = all_configs()[name]
    plan = family_of(config).tensors
    layout = plan.experts[1 if config["model_type"] in _SECOND_LAYOUT else 0]
    tensors = numbered(
        in_order(config["model_type"], plan.dense) | {name: shape for name, (shape, _) in layout.items()}
    )
    for source, below in plan.whole.items():
        tensors[source] = _table((128 * tensors[source].float().numpy() + 128).astype(np.int64), below)
    if config["model_type"] == "deepseek_v4":  # which the converter knows in FP4 alone
        tensors |= {source: fp4(tensors[source]) for source in layout}
    return config, tensors


def in_order(model_type: str, dense: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """As their numbers were drawn when the record was made."""
    patterns = _DRAWN.get(model_type, ())

    def place(name: str) -> tuple[int, int]:
        for rank, pattern in enumerate(patterns):
            if found := re.search(pattern, name):
                return rank, int(found["layer"]) if "layer" in found.groupdict() else 0
        return -1, 0

    return {name: dense[name] for name in sorted(dense, key=place)}


def numbered(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Tensors of multiples of 1/128 in bf16, the same ones everywhere."""
    generator = np.random.PCG64(1)
    tensors = {}
    for source, shape in shapes.items():
        numbers = generator.random_raw(int(np.prod(shape))) >> np.uint64(56)
        values = (numbers.astype(np.float32) - 128) / 128
        tensors[source] = torch.from_numpy(values).reshape(shape).to(torch.bfloat16)
    return tensors


def _table(numbers: npt.NDArray[np.int64], below: int) -> Tensor:
    """Rows of different numbers, made of any."""
    steps = np.arange(numbers.shape[1]) * (1 + numbers[:, 1:2] % 2 * 2)
    return torch.from_numpy((numbers[:, :1] + steps) % below)


def summary(gguf: Gguf) -> dict[str, Any]:
    """What is recorded of a file; no digest of what the processor's exp decides."""
    data = gguf.files[0].path.read_bytes()
    architecture = gguf.metadata["general.architecture"]

    def value(given: Any) -> Any:
        return given if isinstance(given, bool | int | float | str) else list(given)

    return {
        "architecture": architecture,
        "metadata": {
            name: value(given) for name, given in sorted(gguf.metadata.items()) if name.startswith(f"{architecture}.")
        },
        "tensors": {
            name: [
                tensor.format,
                list(tensor.shape),
                hashlib.sha256(data[tensor.offset_bytes : tensor.offset_bytes + tensor.num_bytes]).hexdigest()[:12]
                if not name.endswith("ssm_a")
                else "",
            ]
            for name, tensor in sorted(gguf.tensors.items())
        },
    }


def converter_of(hf: str) -> Any:
    """The converter's class of an architecture. Up to April 2026 all of them were in one file."""
    try:
        from conversion import get_model_class  # type: ignore[import-not-found]
    except ImportError:
        from convert_hf_to_gguf import ModelBase, ModelType  # type: ignore[import-not-found]

        return ModelBase.from_model_architecture(hf, ModelType.TEXT)
    return get_model_class(hf)


def _convert(name: str, folder: Path) -> dict[str, Any]:
    import gguf

    config, tensors = checkpoint(name)
    hf = config.get("architectures", [HF[config["model_type"]]])[0]
    said = hybrid_gguf.as_published(as_published(config)) | {"architectures": [hf]}
    (folder / "config.json").write_text(json.dumps(said))
    tensors = published(config, tensors)
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    vocabulary = {str(number): number for number in range(97)}  # which some classes count
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": [], "model": {"vocab": vocabulary}}))
    kind = converter_of(hf)
    for each in (kind, getattr(kind, "Mistral4Model", kind)):
        each.set_vocab = lambda self: None
        each._get_suppress_tokens = lambda self: []
    kind.no_mtp = True
    path = folder / "model.gguf"
    with torch.inference_mode():
        kind(folder, gguf.LlamaFileType.MOSTLY_BF16, path, model_name=name).write()
    return summary(read_gguf(path))


def main() -> None:
    llama_cpp = Path(sys.argv[1])
    sys.path[:0] = [str(llama_cpp / "gguf-py")]
    sys.path.append(str(llama_cpp))
    known = recorded() if sys.argv[2:] else {}
    found = {name: known[name] for name in NAMES if name in known and name not in sys.argv[2:]}
    for name in sys.argv[2:] or NAMES:  # each in a process of its own: the converter leaves its classes changed
        with tempfile.TemporaryDirectory() as folder:
            answer = Path(folder) / "answer.json"
            child = os.fork()
            if not child:
                answer.write_text(json.dumps(_convert(name, Path(folder))))
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0, name
            found[name] = json.loads(answer.read_text())
    lines = (f"{json.dumps(name)}: {json.dumps(found[name], separators=(',', ':'))}" for name in NAMES)
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
