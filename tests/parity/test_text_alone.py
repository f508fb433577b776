"""Language models that were saved without the model that sees or hears beside them, as transformers saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Cohere2MoeConfig,
    Cohere2VisionConfig,
    Cohere2VisionForConditionalGeneration,
    SiglipVisionConfig,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from moeinf.models.registry import FAMILIES
from tests.support.checkpoints import write_tokenizer
from tests.support.configs.cohere2_moe import COHERE2
from tests.support.pairs.decoders import CONFIGS, PROMPT, logits
from tests.support.pairs.pulled import Tensors, built, change, pulled
from tests.support.tiny_models import transformers_model

WHOLE = {each["model_type"]: each for each in reversed(CONFIGS.values()) if "text_config" in each}
ALONE = [
    (entry.model_type, name)
    for entry in FAMILIES
    for name in entry.also
    if entry.model_type in WHOLE and name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
]


def text_config(whole: str, alone: str) -> dict[str, Any]:
    return {**WHOLE[whole]["text_config"], "model_type": alone}


@torch.inference_mode()
@pytest.mark.parametrize(("whole", "alone"), ALONE)
def test_logits_are_those_of_transformers_behind_every_prefix(whole: str, alone: str, tmp_path: Path) -> None:
    torch.manual_seed(7)
    theirs = transformers_model(text_config(whole, alone))
    folder = tmp_path / "c"
    theirs.save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text("{}")
    write_tokenizer(folder)
    expected = theirs(torch.tensor([PROMPT])).logits[0]
    found = logits(built(pulled(folder)[0]), [PROMPT])
    assert (found - expected).abs().max() < 1e-4

    def wrapped(tensors: Tensors) -> Tensors:
        return {f"model.language_{name}" if name.startswith("model.") else name: each for name, each in tensors.items()}

    change(folder, wrapped)
    assert torch.equal(found, logits(built(pulled(folder)[0]), [PROMPT]))


@torch.inference_mode()
def test_command_a_plus_is_its_language_model(tmp_path: Path) -> None:
    """Logits are scaled by 1, as published; transformers leaves their scale out of whole checkpoints."""
    values = {name: value for name, value in COHERE2.items() if name != "model_type"} | {"logit_scale": 1.0}
    tower = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    tower |= {"image_size": 8, "patch_size": 4}
    torch.manual_seed(7)
    config = Cohere2VisionConfig(text_config=Cohere2MoeConfig(**values), vision_config=SiglipVisionConfig(**tower))
    whole: Any = Cohere2VisionForConditionalGeneration(config).float().eval()
    whole.save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    write_tokenizer(tmp_path)
    found = logits(built(pulled(tmp_path)[0]), [PROMPT])
    assert (found - whole(torch.tensor([PROMPT])).logits[0]).abs().max() < 1e-4


def test_each_type_that_transformers_loads_alone_is_compared() -> None:
    assert len(ALONE) >= 8
