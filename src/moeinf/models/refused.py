"""Families of experts that moeinf does not run, by model_type, and what each would need.

tests/unit/models/test_transformers_types.py holds this and the table of families to the types of transformers.
"""

from __future__ import annotations

from typing import Final

_OF_IMAGES: Final = "a reader of the language model of a checkpoint that also sees images"
_NO_LANGUAGE: Final = "nothing: it generates no text"


def _part_of(whole: str) -> str:
    return f"the whole checkpoint, whose model_type is {whole!r}: this is the part of it that reads text"


REFUSED: Final = {
    "diffusion_gemma": "generation of text by diffusion",
    "diffusion_gemma_text": "generation of text by diffusion",
    "doge": "experts of single rows, found by products of keys",
    "dots3_note_vision_encoder": _NO_LANGUAGE,
    "inkling_text": _part_of("inkling_mm_model"),
    "jetmoe": "attention that is given queries, as experts make them of a token and take its outputs",
    "minimax_m3_vl_text": _part_of("minimax_m3_vl"),
    "openai_privacy_filter": _NO_LANGUAGE,
    "qwen3_omni_moe_talker_text": _part_of("qwen3_omni_moe"),
    "qwen3_omni_moe_text": _part_of("qwen3_omni_moe"),
    "qwen3_omni_moe_thinker": _part_of("qwen3_omni_moe"),
    "unlimited_ocr": f"windows beside the whole prompt, of which attention would have to know the end, {_OF_IMAGES}",
    "unlimited_ocr_text": _part_of("unlimited_ocr"),
    "vitpose": _NO_LANGUAGE,
    "vitpose_backbone": _NO_LANGUAGE,
}

# Of checkpoints whose config.json has no model_type, as code that comes with them reads it: by their architecture.
WITH_CODE: Final = {
    "LongcatCausalLM": "LongCat-Flash with tables of n-grams and attention to the tokens that an index chooses"
}
