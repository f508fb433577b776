"""The families that moeinf runs: what docs/models.md says of them, and what `family_of` looks up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FamilyEntry:
    model_type: str  # of config.json; the module is named after it
    kin: str  # the folder of families that the module is in
    checkpoints: tuple[str, ...]  # that people run
    special: str  # what a reader of the code should know
    verified: str = "transformers"  # against what
    notes: tuple[str, ...] = ()  # where the reference is wrong, and what is followed instead
    also: tuple[str, ...] = ()  # other model_types of such checkpoints
    encoder_decoder: bool = False

    @property
    def module(self) -> str:
        return f"{self.kin}.{self.model_type.replace('-', '_')}"


FAMILIES = (
    FamilyEntry(
        "mixtral",
        "mixtral",
        ("Mixtral-8x7B", "Mixtral-8x22B", "WizardLM-2-8x22B"),
        "8 large experts, 2 a token; sliding window where the config has one",
    ),
    FamilyEntry("olmoe", "mixtral", ("OLMoE-1B-7B",), "norms over whole queries and keys, clipped projections"),
    FamilyEntry(
        "qwen2_moe",
        "qwen",
        ("Qwen1.5-MoE-A2.7B", "Qwen2-57B-A14B"),
        "a shared expert behind a sigmoid gate, biased queries, keys and values; dense layers by step or name",
    ),
    FamilyEntry(
        "qwen3_moe", "qwen", ("Qwen3-30B-A3B", "Qwen3-235B-A22B"), "norms of each head; dense layers by step or name"
    ),
    FamilyEntry(
        "switch_transformers",
        "seq2seq",
        ("switch-base-8", "switch-base-128", "switch-large-128"),
        "T5 encoder-decoder; one expert a token in every other layer; a source's tokens beyond an expert's capacity "
        "pass the layer unchanged; those of an answer never do, as they are decoded one by one",
        encoder_decoder=True,
    ),
    FamilyEntry(
        "qwen3_next",
        "qwen",
        ("Qwen3-Next-80B-A3B",),
        "gated DeltaNet with a recurrent state in three of four layers, gated attention in the others; a shared "
        "expert behind a sigmoid gate",
    ),
    FamilyEntry(
        "qwen3_5_moe",
        "qwen",
        ("Qwen3.5-35B-A3B", "Qwen3.5-122B-A10B", "Qwen3.6-35B-A3B"),
        "Qwen3-Next with DeltaNet's projections apart; sees pictures",
        also=("qwen3_5_moe_text",),
    ),
    FamilyEntry(
        "qwen4_exp",
        "qwen",
        ("Qwen3.8-Flash-Next",),
        "Qwen3-Next's layers between hyper-connections of several streams; attention to blocks of tokens that an "
        "indexer chooses; n-grams of the last tokens are looked up in a table that stays on the disk; the language "
        "model of checkpoints that also see images",
        also=("qwen4_exp_text",),
    ),
    FamilyEntry(
        "deepseek_v2",
        "deepseek",
        ("DeepSeek-V2-Lite", "DeepSeek-V2", "DeepSeek-V2.5"),
        "latent attention, of which the compressed rows are cached; yarn that sharpens the scores; dense layers "
        "first, shared experts, softmax routing, in V2 within groups",
        notes=(
            "transformers 4.57.6 lacks the squared mscale of the scores, which the published code and 5.23 have",
            "transformers ignores norm_topk_prob and moe_layer_freq; here they mean what they mean in the "
            "published code (no published checkpoint sets them)",
        ),
    ),
    FamilyEntry(
        "deepseek_v3",
        "deepseek",
        ("DeepSeek-V3", "DeepSeek-R1"),
        "latent attention as in V2; sigmoid routing with a correction bias within groups; FP8 blocks of 128 x 128; "
        "the layer that predicts further tokens is kept, and not run",
        notes=(
            "transformers ignores moe_layer_freq; here it means what it means in the published code (no "
            "published checkpoint sets it)",
        ),
    ),
    FamilyEntry(
        "deepseek_v4",
        "deepseek",
        ("DeepSeek-V4-Flash", "DeepSeek-V4-Pro"),
        "streams mixed by doubly stochastic matrices; attention to a window and to entries that stand for 4 tokens, "
        "chosen by an indexer, or for 128; first experts by a table of tokens; clamped SwiGLU; MTP is kept, not run",
    ),
    FamilyEntry(
        "hy_v4",
        "hunyuan",
        ("Hy4-preview",),
        "GLM-5's attention with sinks and gates; hyper-connections; clamped SwiGLU; MTP is kept, not run",
        notes=(
            "transformers rotates pairs half a head apart, and has another epsilon in norms of latents; here both "
            "are as in vLLM and llama.cpp, which serve the published checkpoint, and in transformers' Hunyuan 4 VL",
        ),
    ),
    FamilyEntry(
        "hy_v4_vl",
        "hunyuan",
        ("Hy4",),
        "the language model of checkpoints that also see images: Hunyuan 4's",
        also=("hy_v4_vl_text",),
    ),
    FamilyEntry(
        "glm5_next",
        "deepseek",
        ("GLM-5.3-Flash",),
        "Kimi Linear's layers, DeepSeek-V4's streams; an indexer of pools",
        also=("glm5_next_text",),
    ),
    FamilyEntry(
        "glm4_moe",
        "glm",
        ("GLM-4.5", "GLM-4.5-Air", "GLM-4.6"),
        "DeepSeek-V3's routing with one group, shared experts; half of each head is rotated, norms of each head "
        "where the config has them; the layer that predicts further tokens is kept, and not run",
    ),
    FamilyEntry(
        "gpt_oss",
        "mixtral",
        ("gpt-oss-20b", "gpt-oss-120b"),
        "MXFP4 experts as shipped, with biases and a clamped SwiGLU; attention sinks; windows in every other layer; "
        "what the model writes to its analysis channel is shown as thoughts",
        notes=("transformers 4.57.6 takes 7 for any swiglu_limit; here, as in 5.23, it is the config's",),
    ),
    FamilyEntry(
        "granitemoe",
        "mixtral",
        ("granite-3.1-1b-a400m", "granite-3.1-3b-a800m", "PowerMoE-3b"),
        "multipliers of embeddings, attention, residuals and logits; gate and up in one matrix, tied embeddings",
    ),
    FamilyEntry(
        "phimoe",
        "mixtral",
        ("Phi-3.5-MoE",),
        "sparsemixer takes two experts a token; layer norms, biases, longrope",
        notes=(
            "transformers 5.23 pairs the short factors of longrope with the long mscale; here each has its own, "
            "as published",
            "longrope goes by the length of a sequence: short factors up to the trained length, long ones beyond it, "
            "for all tokens; they are computed anew once an answer grows across it, as in published code",
        ),
    ),
    FamilyEntry(
        "arctic",
        "mixtral",
        ("Snowflake Arctic",),
        "128 experts beside attention, on the layer's input; behind attention a dense MLP in every layer",
        verified="a torch reference of its own (tests/oracles/arctic.py)",
        notes=(
            "transformers has none: follows modeling_arctic.py as published with snowflake-arctic-instruct, with "
            "its own experts rather than DeepSpeed's, so that no token is dropped for an expert's capacity",
        ),
    ),
    FamilyEntry(
        "nllb-moe",
        "seq2seq",
        ("nllb-moe-54b",),
        "M2M-100 encoder-decoder told its languages; two experts a token in every fourth layer; beam search",
        verified="transformers with its router mended (tests/support/configs/nllb_moe.py), and 4.57.6",
        notes=(
            "transformers 5.23 only ever uses experts 0 and 1; here a token has its two likeliest, as published "
            "and as in 4.57.6",
        ),
        encoder_decoder=True,
    ),
    FamilyEntry(
        "qwen3_vl_moe",
        "qwen",
        ("Qwen3-VL-30B-A3B", "Qwen3-VL-235B-A22B"),
        "Qwen3-MoE, whose experts were published transposed; sees pictures, of which its first layers are given more",
        also=("qwen3_vl_moe_text",),
    ),
    FamilyEntry(
        "qwen3_omni_moe",
        "qwen",
        ("Qwen3-Omni-30B-A3B",),
        "the language model of checkpoints that also see, hear and speak: Qwen3-MoE's",
    ),
    FamilyEntry(
        "glm4_moe_lite",
        "deepseek",
        ("GLM-4.7-Flash",),
        "DeepSeek-V3's attention and blocks with one group; the layer that predicts further tokens is kept, and not "
        "run",
    ),
    FamilyEntry(
        "minimax_m2",
        "minimax",
        ("MiniMax-M2", "MiniMax-M2.1"),
        "sigmoid routing with a correction bias in every layer, nothing shared; norms over whole queries and keys, "
        "half of each head rotated",
    ),
    FamilyEntry(
        "kimi_k2",
        "kimi",
        ("Kimi-K2-Instruct", "Kimi-K2-Thinking"),
        "DeepSeek-V3 with one group, 384 experts and fewer heads",
        verified="transformers' DeepSeek-V3, under which name it reads these checkpoints",
    ),
    FamilyEntry(
        "ernie4_5_moe",
        "ernie",
        ("ERNIE-4.5-21B-A3B", "ERNIE-4.5-300B-A47B"),
        "softmax routing with a correction bias, shared experts, rotary pairs side by side; layers that predict "
        "further tokens are kept, and not run",
    ),
    FamilyEntry("dots1", "glm", ("dots.llm1",), "Qwen3's attention, DeepSeek-V3's blocks with one group"),
    FamilyEntry(
        "glm4v_moe",
        "glm",
        ("GLM-4.5V", "GLM-4.6V"),
        "the language model of checkpoints that also see images: GLM-4.5-Air's",
        also=("glm4v_moe_text",),
    ),
    FamilyEntry("solar_open", "glm", ("Solar-Open-100B",), "GLM-4.5's blocks in every layer, whole heads rotated"),
    FamilyEntry(
        "mimo_v2_flash",
        "glm",
        ("MiMo-V2-Flash",),
        "DeepSeek-V3's routing without shared experts; values narrower than keys; five of six layers have a window, "
        "attention sinks, twice the key/value heads and positions of their own",
        notes=("the cache has room for values as wide as keys",),
    ),
    FamilyEntry(
        "cohere2_moe",
        "mixtral",
        ("North-Mini-Code-1.0",),
        "attention and experts side by side on one norm, layer norms without a bias; layers that see all tokens have "
        "no positions, the others have a window",
    ),
    FamilyEntry(
        "step3p7",
        "glm",
        ("Step-3.5-Flash", "Step-3.7-Flash"),
        "sigmoid routing with a correction bias, a shared expert; sigmoid gates of heads; layers with a window have "
        "more heads and positions of their own; the SwiGLU of some layers is clamped; the language model of "
        "checkpoints that also see images; layers that predict further tokens are kept, and not run",
        also=("step3p5",),
    ),
    FamilyEntry(
        "laguna",
        "glm",
        ("Laguna-XS.2",),
        "sigmoid routing with a correction bias, a shared expert; softplus gates of heads; layers differ in their "
        "number of heads, and those with a window have positions of their own",
    ),
    FamilyEntry(
        "granitemoeshared",
        "mixtral",
        ("moe-7b-1b-active-shared-experts",),
        "granitemoe with an MLP in each layer that every token is given besides its experts",
    ),
    FamilyEntry(
        "hunyuan_v1_moe",
        "hunyuan",
        ("Hunyuan-A13B",),
        "Mixtral's routing beside a shared MLP; queries and keys are normed behind their rotation",
        also=("hunyuan",),
    ),
    FamilyEntry(
        "flex_olmo",
        "mixtral",
        ("FlexOlmo-7x7B-1T",),
        "OLMoE with its norms behind attention and experts instead of in front of them",
    ),
    FamilyEntry(
        "afmoe",
        "glm",
        ("Trinity-Nano", "Trinity-Mini"),
        "sigmoid routing with a correction bias, gated attention, norms on both sides; every fourth layer sees all "
        "tokens and has no positions, the others have a window",
    ),
    FamilyEntry(
        "mistral4",
        "mistral",
        ("Mistral-Small-4-119B",),
        "latent attention, softmax routing, queries that are sharpened in long contexts; the language model where it "
        "was saved alone",
    ),
    FamilyEntry(
        "exaone_moe",
        "glm",
        ("K-EXAONE-236B-A23B",),
        "DeepSeek-V3's blocks; layers with a window have positions, those that see all tokens have none",
    ),
    FamilyEntry(
        "hy_v3",
        "hunyuan",
        ("Hy3-preview",),
        "Qwen3's attention, sigmoid routing with a correction bias, a shared expert; the layer that predicts further "
        "tokens is kept, and not run",
    ),
    FamilyEntry("axk1", "deepseek", ("A.X-K1",), "DeepSeek-V3 with a norm of what the experts of a layer add"),
    FamilyEntry(
        "flint",
        "glm",
        ("flint",),
        "sigmoid routing without a bias, a shared expert, attention sinks; layers that see all tokens have no "
        "positions",
    ),
    FamilyEntry(
        "granitemoe_swa",
        "mixtral",
        ("granite-swash-3b-a600m",),
        "granitemoeshared with windows and attention sinks, and layers without positions",
    ),
    FamilyEntry(
        "granitemoehybrid",
        "hybrid",
        ("granite-4.0-h-tiny", "granite-4.0-h-small"),
        "granitemoeshared with Mamba-2, a recurrent state, in most layers; no positions",
        notes=(
            "steps of Mamba-2 have no limits (time_step_limit): others, which transformers follows in prompts alone, "
            "are refused",
        ),
    ),
    FamilyEntry(
        "nemotron_h",
        "hybrid",
        ("Nemotron-3-Nano-30B-A3B", "Nemotron-3-Super-120B-A12B"),
        "Mamba-2 with a recurrent state in most layers, few layers of attention, no positions; experts without a gate "
        "(squared ReLU), in Super in a narrower space; sigmoid routing with a correction bias; what predicts further "
        "tokens is kept, and not run",
        notes=(
            "transformers 5.24 raises steps of Mamba-2 to time_step_min in prompts, but not as it decodes; here, as in "
            "the published code, they are never raised, and a time_step_min above its default of 0.001 is refused",
            "time_step_limit, attention_bias and mamba_proj_bias are not read, as in transformers 5.24",
        ),
    ),
    FamilyEntry(
        "nemotron_h_omni",
        "hybrid",
        ("Nemotron-3-Nano-Omni-30B-A3B-Reasoning",),
        "the language model of checkpoints that also see and hear: Nemotron 3's",
    ),
    FamilyEntry(
        "nemo_speechlm",
        "hybrid",
        ("Nemotron-3.5-Transcribe-30B-A4B",),
        "the language model of checkpoints that also hear: Nemotron 3's under NeMo's names",
    ),
    FamilyEntry(
        "lfm2_moe",
        "hybrid",
        ("LFM2-8B-A1B", "LFM2-24B-A2B"),
        "a gated convolution over three tokens in most layers, attention in the others; sigmoid routing with a "
        "correction bias, dense layers first",
    ),
    FamilyEntry(
        "jamba",
        "hybrid",
        ("Jamba-v0.1", "AI21-Jamba-Mini-1.7", "AI21-Jamba-Large-1.7"),
        "Mamba with a recurrent state in seven of eight layers, attention without positions in the others; experts in "
        "every other layer",
    ),
    FamilyEntry(
        "bailing_moe",
        "glm",
        ("Ling-lite-1.5", "Ling-mini-2.0", "Ling-flash-2.0", "Ring-mini-2.0"),
        "queries, keys and values in one matrix; the first generation routes by softmax, the second as DeepSeek-V3, "
        "with half of each head turned; layers that predict further tokens are kept, and not run",
        verified="a torch reference of its own (tests/oracles/bailing.py)",
        notes=("transformers has none: follows the modeling code as published with inclusionAI/Ling and Ling-V2",),
        also=("bailing_moe_v2",),
    ),
    FamilyEntry(
        "kimi_k25",
        "kimi",
        ("Kimi-K2.5", "Kimi-K2.6", "Kimi-K2.7-Code"),
        "the language model of checkpoints that also see images: Kimi K2's",
        verified="transformers' DeepSeek-V3 under the names of these checkpoints",
    ),
    FamilyEntry(
        "gemma4",
        "gemma",
        ("Gemma-4-26B-A4B",),
        "a dense MLP beside the experts of each layer; windows in five of six layers, in the others larger heads, "
        "positions of another kind and values that are the keys; sees pictures",
        also=("gemma4_text",),
    ),
    FamilyEntry(
        "llama4",
        "llama",
        ("Llama-4-Scout-17B-16E", "Llama-4-Maverick-17B-128E"),
        "the language model of checkpoints that also see images: one expert a token, whose input the router scales, "
        "and a shared one; attention in chunks, and without positions in every fourth layer",
        also=("llama4_text",),
    ),
    FamilyEntry(
        "deepseek_v32",
        "deepseek",
        ("DeepSeek-V3.2", "DeepSeek-V3.2-Exp"),
        "DeepSeek-V3, whose tokens attend to the index_topk positions that an indexer chooses in each layer",
        notes=("queries and keys of the indexer are not rounded to FP8, as in transformers",),
    ),
    FamilyEntry(
        "glm_moe_dsa",
        "glm",
        ("GLM-5", "GLM-5.1", "GLM-5.2"),
        "DeepSeek-V3.2 with one group of experts; layers may share what the indexer of another has chosen",
    ),
    FamilyEntry(
        "axk2",
        "deepseek",
        ("A.X-K2", "A.X-K2-Light"),
        "DeepSeek-V3.2 with gates behind norms and behind the heads of attention",
    ),
    FamilyEntry(
        "kimi_linear",
        "kimi",
        ("Kimi-Linear-48B-A3B-Instruct",),
        "linear attention with a decay for each channel (KDA) and a recurrent state in three of four layers, latent "
        "attention without positions in the others; DeepSeek-V3's blocks",
    ),
    FamilyEntry(
        "bailing_hybrid",
        "deepseek",
        ("Ling-3.0-Flash",),
        "Kimi Linear with bounded decays, rotary positions, and gates of heads in latent attention, which is in every "
        "sixth layer; layers that predict further tokens are kept, and not run",
    ),
    FamilyEntry(
        "minimax",
        "minimax",
        ("MiniMax-Text-01-hf", "MiniMax-M1-40k-hf", "MiniMax-M1-80k-hf"),
        "linear attention with a decay for each head (lightning attention) and a recurrent state in most layers, "
        "Mixtral's attention in the others; Mixtral's experts; the states that layers add to are normed and scaled",
        verified="transformers with its cache mended (tests/support/configs/minimax.py)",
        notes=(
            "transformers 5.24 rotates whole heads whatever rotary_dim says; here it is followed, as in the published "
            "code",
            "transformers 5.24 gives every token that it decodes the first position where the first layer is linear",
        ),
    ),
    FamilyEntry(
        "minimax_m3_vl",
        "minimax",
        ("MiniMax-M3",),
        "the language model of checkpoints that also see images: sigmoid routing with a correction bias, a shared "
        "expert, gpt-oss's SwiGLU; each key/value head attends to blocks of tokens that an indexer chooses",
    ),
    FamilyEntry(
        "longcat_flash",
        "deepseek",
        ("LongCat-Flash-Chat", "LongCat-Flash-Thinking"),
        "layers of two latent attentions and two MLPs; experts beside the second of both; of those that a token is "
        "routed to some give it back unchanged, and take no memory",
    ),
    FamilyEntry(
        "ernie4_5_vl_moe",
        "ernie",
        ("ERNIE-4.5-VL-28B-A3B", "ERNIE-4.5-VL-424B-A47B"),
        "the language model of checkpoints that also see images: ERNIE 4.5's; experts for images, which no text is "
        "routed to, are left out",
        also=("ernie4_5_vl_moe_text",),
    ),
    FamilyEntry(
        "aria",
        "mixtral",
        ("Aria",),
        "the language model of checkpoints that also see images: softmax over the chosen experts, which were published "
        "transposed, beside some that all tokens share",
        also=("aria_text",),
    ),
    FamilyEntry(
        "deepseek_ocr2",
        "deepseek",
        ("DeepSeek-OCR-2",),
        "the language model of checkpoints that also see images: DeepSeek-V2's blocks under common attention",
        also=("deepseek_ocr2_text",),
    ),
    FamilyEntry(
        "sarvam_moe",
        "sarvam",
        ("sarvam-30b",),
        "Ling's second generation with whole heads turned: queries, keys and values in one matrix, sigmoid routing "
        "with a correction bias",
    ),
    FamilyEntry("sarvam_mla", "sarvam", ("sarvam-105b",), "DeepSeek-V3, whose queries are not compressed"),
    FamilyEntry(
        "lara_mini",
        "qwen",
        ("Lara-4-Mini-Base",),
        "gated DeltaNet with a recurrent state in two of five layers, whose projections are one matrix; of the others "
        "most have a window, and those that see all tokens have no positions; a shared expert",
    ),
    FamilyEntry(
        "dbrx",
        "mixtral",
        ("dbrx-instruct", "dbrx-base"),
        "queries, keys and values in one matrix, clipped; layer norms without a bias; softmax routing; one matrix has "
        "the rows of all experts",
        notes=("transformers ignores rope_theta of attn_config where rope_parameters are missing; here it counts",),
    ),
    FamilyEntry(
        "inkling_mm_model",
        "inkling",
        ("Inkling",),
        "the language model alone: scores are biased by distance, there are no positions; short convolutions on keys, "
        "values and what attention and blocks add; shared experts that the router weighs; layers that predict further "
        "tokens are kept, and not run; checkpoints in NVFP4 are refused",
    ),
    FamilyEntry(
        "inkling2",
        "inkling",
        ("Inkling-2-Small",),
        "the language model alone: Inkling's attention with queries and keys of bounded length, sinks and gates; "
        "layers choose what they are given among what blocks of layers have left; experts between softcaps; "
        "checkpoints in MXFP8 are refused",
        also=("inkling2_text",),
    ),
    FamilyEntry(
        "inkling2_loop",
        "inkling",
        ("Inkling-2-Mini",),
        "Inkling 2, some of whose layers run several times, each pass being told what the one before has left; their "
        "routing is not recorded, nor replayed",
        also=("inkling2_loop_text",),
    ),
    FamilyEntry(
        "kolibri1",
        "glm",
        ("Kolibri-1",),
        "sigmoid routing, where logits and a correction bias choose; norms on both sides, a shared expert; every fifth "
        "layer sees all tokens and has no positions, the others have a window",
    ),
    FamilyEntry(
        "mistral_large4",
        "mistral",
        ("Mistral-Large-4-1T-A52B",),
        "the language model of checkpoints that also see images: latent attention to positions that an indexer "
        "chooses, latents that layers share, learned frequencies of positions, queries that grow with their position; "
        "softmax routing",
        also=("mistral_large4_text",),
    ),
    FamilyEntry(
        "dots3_note",
        "deepseek",
        ("dots3-note-prev",),
        "the language model of checkpoints that also see and hear: latent attention to positions that an indexer "
        "chooses, or with a window and sizes of its own; gates of heads, norms of rotary keys, DeepSeek-V3's routing",
        also=("dots3_note_text",),
        notes=("llama.cpp rotates halves of the indexer's heads; here, as in transformers, neighbouring pairs",),
    ),
    FamilyEntry(
        "beam",
        "glm",
        ("Beam-1.0-501B-A23B",),
        "sigmoid routing with a correction bias within groups; norms on both sides, sums weighed by their depth; gated "
        "attention, in every sixth layer to all tokens and without positions, in the others with a window",
    ),
    FamilyEntry(
        "mellum", "qwen", ("Mellum2-12B-A2.5B",), "Qwen3-MoE, whose layers with a window have positions of their own"
    ),
    FamilyEntry(
        "zaya",
        "hybrid",
        ("ZAYA1-8B",),
        "queries, keys and values that short convolutions mix; a token uses one expert or none, chosen by an MLP over "
        "states that routers hand on; what layers add is shifted and scaled by number",
    ),
)

SUPPORTED = tuple(entry.model_type for entry in FAMILIES)
MODULES = {name: entry.module for entry in FAMILIES for name in (entry.model_type, *entry.also)}
