"""Nemotron 3.5 Transcribe, the language model of it, as NeMo names its tensors: Nemotron 3's.

Checkpoints hold models that hear beside it, which are left out (Nemotron3_5Transcribe in transformers).
"""

from __future__ import annotations

from functools import partial

from moeinf.models.families.hybrid import nemotron_h, nemotron_h_omni


class Family(nemotron_h_omni.Family):
    name = "nemo_speechlm"
    parse = staticmethod(partial(nemotron_h.parse, in_one=("experts.gate_and_up_projs", "experts.down_projs")))
    ignored = (r"(perception|ctc_timestamp)\..*|.*\._extra_state",)
    renamed = (
        (r"^llm\.model\.embed_tokens\.", "backbone.embeddings."),
        (r"^llm\.model\.norm\.", "backbone.norm_f."),
        (r"^llm\.model\.(layers\.\d+\.mixer\.)_fp32_params\.", r"backbone.\1"),
        (r"^llm\.model\.", "backbone."),
        (r"^llm\.", ""),
        *nemotron_h.Family.renamed,
    )
