"""The families that moeinf runs, which `family_of` looks up. What is special in each: docs/reference/families.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FamilyEntry:
    model_type: str  # of config.json; the module is named after it
    kin: str  # the folder of families that the module is in
    also: tuple[str, ...] = ()  # other model_types of such checkpoints

    @property
    def module(self) -> str:
        return f"{self.kin}.{self.model_type.replace('-', '_')}"


FAMILIES = (
    FamilyEntry("mixtral", "mixtral"),
    FamilyEntry("olmoe", "mixtral"),
    FamilyEntry("qwen2_moe", "qwen"),
    FamilyEntry("qwen3_moe", "qwen"),
    FamilyEntry("switch_transformers", "seq2seq"),
    FamilyEntry("qwen3_next", "qwen"),
    FamilyEntry("qwen3_5_moe", "qwen", also=("qwen3_5_moe_text",)),
    FamilyEntry("qwen4_exp", "qwen", also=("qwen4_exp_text",)),
    FamilyEntry("deepseek_v2", "deepseek"),
    FamilyEntry("deepseek_v3", "deepseek"),
    FamilyEntry("deepseek_v4", "deepseek"),
    FamilyEntry("deepseek_v41", "deepseek", also=("deepseek_v41_text",)),
    FamilyEntry("hy_v4", "hunyuan"),
    FamilyEntry("hy_v4_vl", "hunyuan", also=("hy_v4_vl_text",)),
    FamilyEntry("glm5_next", "deepseek", also=("glm5_next_text",)),
    FamilyEntry("glm4_moe", "glm"),
    FamilyEntry("gpt_oss", "mixtral"),
    FamilyEntry("granitemoe", "mixtral"),
    FamilyEntry("phimoe", "mixtral"),
    FamilyEntry("arctic", "mixtral"),
    FamilyEntry("nllb-moe", "seq2seq"),
    FamilyEntry("qwen3_vl_moe", "qwen", also=("qwen3_vl_moe_text",)),
    FamilyEntry("qwen3_omni_moe", "qwen"),
    FamilyEntry("glm4_moe_lite", "deepseek"),
    FamilyEntry("minimax_m2", "minimax"),
    FamilyEntry("kimi_k2", "kimi"),
    FamilyEntry("ernie4_5_moe", "ernie"),
    FamilyEntry("dots1", "glm"),
    FamilyEntry("glm4v_moe", "glm", also=("glm4v_moe_text",)),
    FamilyEntry("solar_open", "glm"),
    FamilyEntry("mimo_v2_flash", "glm"),
    FamilyEntry("mimo_v2", "glm"),
    FamilyEntry("k2_horizon", "llama"),
    FamilyEntry("cohere2_moe", "mixtral", also=("cohere2_vision",)),
    FamilyEntry("step3p7", "glm", also=("step3p5",)),
    FamilyEntry("laguna", "glm"),
    FamilyEntry("granitemoeshared", "mixtral"),
    FamilyEntry("hunyuan_v1_moe", "hunyuan", also=("hunyuan",)),
    FamilyEntry("flex_olmo", "mixtral"),
    FamilyEntry("afmoe", "glm"),
    FamilyEntry("mistral4", "mistral", also=("mistral3",)),
    FamilyEntry("exaone_moe", "glm"),
    FamilyEntry("hy_v3", "hunyuan"),
    FamilyEntry("axk1", "deepseek"),
    FamilyEntry("flint", "glm"),
    FamilyEntry("granitemoe_swa", "mixtral"),
    FamilyEntry("granitemoehybrid", "hybrid"),
    FamilyEntry("nemotron_h", "hybrid"),
    FamilyEntry("nemotron_h_omni", "hybrid", also=("NemotronH_Nano_Omni_Reasoning_V3",)),
    FamilyEntry("nemo_speechlm", "hybrid"),
    FamilyEntry("lfm2_moe", "hybrid"),
    FamilyEntry("jamba", "hybrid"),
    FamilyEntry("bailing_moe", "glm", also=("bailing_moe_v2",)),
    FamilyEntry("kimi_k25", "kimi"),
    FamilyEntry("gemma4", "gemma", also=("gemma4_text",)),
    FamilyEntry("llama4", "llama", also=("llama4_text",)),
    FamilyEntry("deepseek_v32", "deepseek"),
    FamilyEntry("glm_moe_dsa", "glm"),
    FamilyEntry("glm5v", "kimi"),
    FamilyEntry("axk2", "deepseek"),
    FamilyEntry("kimi_linear", "kimi"),
    FamilyEntry("kimi_k3", "kimi"),
    FamilyEntry("bailing_hybrid", "deepseek"),
    FamilyEntry("minimax", "minimax", also=("minimax_m1", "minimax_text_01")),
    FamilyEntry("minimax_m3_vl", "minimax"),
    FamilyEntry("longcat_flash", "deepseek"),
    FamilyEntry("longcat_flash_ngram", "deepseek"),
    FamilyEntry("ernie4_5_vl_moe", "ernie", also=("ernie4_5_vl_moe_text", "ernie4_5_moe_vl")),
    FamilyEntry("aria", "mixtral", also=("aria_text",)),
    FamilyEntry("deepseek_ocr2", "deepseek", also=("deepseek_ocr2_text", "deepseek_vl_v2")),
    FamilyEntry("sarvam_moe", "sarvam"),
    FamilyEntry("sarvam_mla", "sarvam"),
    FamilyEntry("lara_mini", "qwen"),
    FamilyEntry("dbrx", "mixtral"),
    FamilyEntry("inkling_mm_model", "inkling"),
    FamilyEntry("inkling2", "inkling", also=("inkling2_text",)),
    FamilyEntry("inkling2_loop", "inkling", also=("inkling2_loop_text",)),
    FamilyEntry("kolibri1", "glm"),
    FamilyEntry("mistral_large4", "mistral", also=("mistral_large4_text",)),
    FamilyEntry("dots3_note", "deepseek", also=("dots3_note_text",)),
    FamilyEntry("beam", "glm"),
    FamilyEntry("mellum", "qwen"),
    FamilyEntry("zaya", "hybrid"),
    FamilyEntry("smallthinker", "mixtral"),
    FamilyEntry("deepseek", "deepseek"),
    FamilyEntry("maple", "qwen"),
    FamilyEntry("grove_moe", "qwen"),
    FamilyEntry("grok", "mixtral", also=("grok-1", "git")),
    FamilyEntry("minicpm", "llama"),
    FamilyEntry("llama", "llama"),
    FamilyEntry("mistral", "mistral"),
    FamilyEntry("qwen2", "qwen"),
    FamilyEntry("qwen3", "qwen"),
    FamilyEntry("gemma", "gemma"),
    FamilyEntry("gemma2", "gemma"),
    FamilyEntry("gemma3_text", "gemma", also=("gemma3",)),
    FamilyEntry("phi3", "llama"),
    FamilyEntry("granite", "mixtral"),
    FamilyEntry("glm", "llama"),
    FamilyEntry("glm4", "llama"),
    FamilyEntry("ernie4_5", "ernie"),
    FamilyEntry("smollm3", "llama"),
    FamilyEntry("olmo2", "llama"),
    FamilyEntry("starcoder2", "llama"),
)

SUPPORTED = tuple(entry.model_type for entry in FAMILIES)
MODULES = {name: entry.module for entry in FAMILIES for name in (entry.model_type, *entry.also)}
# Of checkpoints whose config.json has no model_type, as code that comes with them reads it.
OF_ARCHITECTURES = {"LongcatFlashNgramForCausalLM": "longcat_flash_ngram"}
