"""Kimi K2.5, K2.6 and K2.7, the language model of them: Kimi K2 under other names of tensors (transformers' Kimi_K25).

Checkpoints hold a model of images beside it (`vision_tower.*`, `mm_projector.*`), which is left out.
"""

from __future__ import annotations

from moeinf.models.families.deepseek import deepseek_v3
from moeinf.models.text_part import TextIn

VISION = r"(vision_tower|mm_projector|multi_modal_projector)\..*"


class Family(deepseek_v3.Family):
    name = "kimi_k25"
    ignored = (VISION,)
    # Readers differ in what a config without tie_word_embeddings means: what is stored decides.
    text = TextIn("language_model.model.", "language_model.", tied=True)
