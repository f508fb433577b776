"""Tiny configs of Nemotron 3.5 Transcribe: whole checkpoints, whose models that hear are left out."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.configs.nemotron_h import NEMOTRON

CONFIGS: dict[str, dict[str, Any]] = {"nemo_speechlm": {"model_type": "nemo_speechlm", "text_config": NEMOTRON}}
_PUBLISHED = {"up_proj": "gate_and_up_projs", "down_proj": "down_projs"}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers', less what hears. It saves a tensor for each expert; here a layer has them in two, as published."""
    from transformers import AutoModel, Nemotron3_5TranscribeConfig, Nemotron3_5TranscribeForConditionalGeneration

    values = {key: value for key, value in config.items() if key != "model_type"}
    made = Nemotron3_5TranscribeConfig(**values)
    with torch.device("meta"):
        whole: Any = Nemotron3_5TranscribeForConditionalGeneration(made)
    del whole.model.audio_tower, whole.model.multi_modal_projector, whole.model.word_timestamp_encoder
    del whole.word_timestamp_head
    text: Any = made.text_config
    auto: Any = AutoModel
    whole.model.language_model = auto.from_config(text)
    whole.lm_head = torch.nn.Linear(text.hidden_size, text.vocab_size, bias=False)
    whole.float().eval()
    save = whole.save_pretrained

    def save_as_published(folder: Path) -> None:
        save(folder)
        tensors, path = load_file(folder / "model.safetensors"), folder / "model.safetensors"
        for name in [name for name in tensors if ".experts.0." in name]:
            experts = [tensors.pop(name.replace(".0.", f".{e}.")) for e in range(text.n_routed_experts)]
            block, _, matrix = name.removesuffix(".weight").rpartition(".0.")
            tensors[f"{block}.{_PUBLISHED[matrix]}"] = torch.stack(experts).transpose(1, 2).contiguous()
        save_file(tensors, path)

    whole.save_pretrained = save_as_published
    return whole
