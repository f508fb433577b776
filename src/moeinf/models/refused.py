"""Families of experts that moeinf does not run, by model_type, and what each would need.

tests/unit/models/test_transformers_types.py holds this and the table of families to the types of transformers.
"""

from __future__ import annotations

from typing import Final

_HEADS_NORMS: Final = "norms of heads' outputs, gated residuals"
_OF_IMAGES: Final = "a reader of the language model of a checkpoint that also sees images"
_OF_SPEECH: Final = "a reader of the language model of a checkpoint that also hears and speaks"
_NO_LANGUAGE: Final = "nothing: it generates no text"


def _part_of(whole: str) -> str:
    return f"the whole checkpoint, whose model_type is {whole!r}: this is the part of it that reads text"


REFUSED: Final = {
    "aria_text": _part_of("aria"),
    "deepseek_ocr2_text": _part_of("deepseek_ocr2"),
    "diffusion_gemma": "generation of text by diffusion",
    "diffusion_gemma_text": "generation of text by diffusion",
    "doge": "experts of single rows, found by products of keys",
    "dots3_note_vision_encoder": _NO_LANGUAGE,
    "ernie4_5_vl_moe_text": _part_of("ernie4_5_vl_moe"),
    "glm4v_moe_text": _part_of("glm4v_moe"),
    "glm5_next_text": _part_of("glm5_next"),
    "hy_v4_vl_text": _part_of("hy_v4_vl"),
    "inkling2_text": _part_of("inkling2"),
    "inkling2_loop_text": _part_of("inkling2_loop"),
    "inkling_text": _part_of("inkling_mm_model"),
    "jetmoe": "attention that is given queries, as experts make them of a token and take its outputs",
    "minimax_m3_vl_text": _part_of("minimax_m3_vl"),
    "mistral_large4_text": _part_of("mistral_large4"),
    "muse_spark": f"experts whose outputs each have a norm before they are summed, {_HEADS_NORMS}, {_OF_SPEECH}",
    "muse_spark_text": _part_of("muse_spark"),
    "openai_privacy_filter": _NO_LANGUAGE,
    "qwen3_omni_moe_talker_text": _part_of("qwen3_omni_moe"),
    "qwen3_omni_moe_text": _part_of("qwen3_omni_moe"),
    "qwen3_omni_moe_thinker": _part_of("qwen3_omni_moe"),
    "qwen3_vl_moe_text": _part_of("qwen3_vl_moe"),
    "unlimited_ocr": f"windows beside the whole prompt, of which attention would have to know the end, {_OF_IMAGES}",
    "unlimited_ocr_text": _part_of("unlimited_ocr"),
    "vitpose": _NO_LANGUAGE,
    "vitpose_backbone": _NO_LANGUAGE,
}
