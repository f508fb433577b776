"""Fields of OpenAI's API that are not obeyed, with those that vLLM, SGLang and llama.cpp's server have added to it."""

from __future__ import annotations

from typing import Final

from moeinf.server.body_fields import Fields, Refused, log_unknown

_FLAG: Final = (False,)
_ON: Final = (True,)
_NONE: Final = ()  # no value of it asks for nothing
_FORM = "answers have one form here"
_SAMPLER = "there is no such sampler here"
_PLACE = "requests are answered by one process"

# Names by which other APIs ask for the same.
OPTION_OBJECTS: Final = ("extra_body", "generation_config", "model_kwargs", "parameters", "sampling_params")
THOUGHTS: Final = ("think", "thinking", "enable_thinking", "reasoning", "reasoning_effort")
_REFUSED: Final = {
    "moderation": Refused("nothing is moderated here"),
    "best_of": Refused("one answer is made a request", (1,)),
    "num_ctx": Refused("give it to `moeinf serve`, or ask /api/chat"),
    "format": Refused("give response_format"),
    "ttl": Refused("give keep_alive", _NONE),
    "random_seed": Refused("give seed", _NONE),
    **{name: Refused("give max_tokens", ()) for name in ("max_new_tokens", "max_output_tokens", "num_predict")},
    "stop_sequences": Refused("give stop"),
    # Where other APIs and libraries put sampling options.
    **{name: Refused("give its members beside model") for name in (*OPTION_OBJECTS, "options")},
    "do_sample": Refused("give temperature 0", _ON),
    # vLLM
    "use_beam_search": Refused("answers are drawn", _FLAG),
    "length_penalty": Refused("it is for a beam search", (1,)),
    "stop_token_ids": Refused("give the text in stop", ([],)),
    "include_stop_str_in_output": Refused("an answer ends before its stop", _FLAG),
    "ignore_eos": Refused("an answer ends where the model ends it", _FLAG),
    "skip_special_tokens": Refused("control tokens are left out of answers", _ON),
    "truncate_prompt_tokens": Refused("a prompt is read whole, or refused", _NONE),
    "prompt_logprobs": Refused("the prompt's tokens have no probabilities here", _NONE),
    "logprob_token_ids": Refused("give top_logprobs"),
    "allowed_token_ids": Refused("give logit_bias, or a grammar"),
    "bad_words": Refused("give logit_bias, or a grammar"),
    "watermarking": Refused("no answer is marked", _FLAG),
    "repetition_detection": Refused(_SAMPLER),
    "media_io_kwargs": Refused("give picture_tokens to `moeinf serve`"),
    "mm_processor_kwargs": Refused("give picture_tokens to `moeinf serve`"),
    "guided_decoding_backend": Refused("there is one", ("", "auto", "guidance", "llguidance")),
    "structural_tag": Refused("give tools and tool_choice, or a grammar"),
    "guided_whitespace_pattern": Refused("say it in a grammar", ("",)),
    "logits_processors": Refused("clients run no code here"),
    "vllm_xargs": Refused("there are no extensions here"),
    "return_tokens_as_token_ids": Refused(_FORM, _FLAG),
    "return_token_ids": Refused(_FORM, _FLAG),
    "return_prompt_text": Refused(_FORM, _FLAG),
    "return_token_offsets": Refused(_FORM, _FLAG),
    "routed_experts_prompt_start": Refused("`moeinf trace` records routing", (0,)),
    "cache_salt": Refused("what is kept of prompts is kept for all; start the server with --prefix-memory 0", _NONE),
    "kv_transfer_params": Refused(_PLACE),
    "ec_transfer_params": Refused(_PLACE),
    # SGLang
    "stop_regex": Refused("give texts in stop"),
    "no_stop_trim": Refused("an answer ends before its stop", _FLAG),
    "lora_path": Refused("pull the model with its adapter (--lora)", ("", [], [None])),
    "session_params": Refused("send the whole conversation"),
    "custom_logit_processor": Refused("clients run no code here"),
    "custom_params": Refused("clients run no code here"),
    "input_ids": Refused("give texts"),
    "images_config": Refused("give picture_tokens to `moeinf serve`"),
    "max_dynamic_patch": Refused("give picture_tokens to `moeinf serve`", _NONE),
    "min_dynamic_patch": Refused("give picture_tokens to `moeinf serve`", _NONE),
    "use_audio_in_video": Refused("models here read text and images", _FLAG),
    "ngram_corpus_id": Refused("there is no corpus here"),
    "task": Refused("say it in a message", _NONE),
    "return_hidden_states": Refused(_FORM, _FLAG),
    "return_routed_experts": Refused("`moeinf trace` records routing", _FLAG),
    "routed_experts_start_len": Refused("`moeinf trace` records routing", (0,)),
    "return_cached_tokens_details": Refused("cached_tokens are told in usage", _FLAG),
    "return_prompt_token_ids": Refused(_FORM, _FLAG),
    "return_meta_info": Refused(_FORM, _FLAG),
    "bootstrap_host": Refused(_PLACE, _NONE),
    "bootstrap_port": Refused(_PLACE, _NONE),
    "bootstrap_room": Refused(_PLACE, _NONE),
    # llama.cpp's server
    "samplers": Refused("they have one order, which docs/sampling.md tells"),
    "typ_p": Refused(_SAMPLER, (1,)),
    "tfs_z": Refused(_SAMPLER, (1,)),
    "top_a": Refused(_SAMPLER, (0,)),
    "top_n_sigma": Refused(_SAMPLER, (0, -1)),
    "min_keep": Refused(_SAMPLER, (0, 1)),
    "mirostat": Refused(_SAMPLER, (0, False)),
    "dynatemp_range": Refused(_SAMPLER, (0,)),
    "xtc_probability": Refused(_SAMPLER, (0,)),
    "dry_multiplier": Refused(_SAMPLER, (0,)),
    "adaptive_target": Refused(_SAMPLER, (-1,)),
    "n_discard": Refused("no context is shifted: an answer ends where it is full", (0,)),
    "n_indent": Refused(_SAMPLER, (0,)),
    "n_probs": Refused("give logprobs and top_logprobs", (0,)),
    "post_sampling_probs": Refused("probabilities are those before a draw", _FLAG),
    "t_max_predict_ms": Refused("answers are bounded by max_tokens", (0, -1)),
    "return_tokens": Refused(_FORM, _FLAG),
    "response_fields": Refused(_FORM),
    "lora": Refused("pull the model with its adapter (--lora)"),
    "grammar_lazy": Refused("a grammar holds from the answer's beginning", _FLAG),
    "grammar_triggers": Refused("a grammar holds from the answer's beginning"),
    "preserved_tokens": Refused("control tokens are left out of answers"),
    # routers, and makers of models with servers of their own
    "models": Refused("a request names one model"),
    "transforms": Refused("a prompt is read whole, or refused"),
    "plugins": Refused("nothing is fetched here"),
    "enable_search": Refused("nothing is fetched here", _FLAG),
    "search_parameters": Refused("nothing is fetched here"),
    "safe_prompt": Refused("say it in a system message", _FLAG),
}
_SPEED = "it may change how fast an answer comes"
_ACCOUNT = "nobody is charged here"
_SILENT: Final = {
    "metadata": "nothing is kept of requests",
    "store": "nothing is kept of requests",
    "safety_identifier": _ACCOUNT,
    "prompt_cache_key": _SPEED,
    "prompt_cache_options": _SPEED,
    "prompt_cache_retention": _SPEED,
    "prediction": _SPEED,
    "request_id": "answers have ids of their own",
    "rid": "answers have ids of their own",
    "session_id": _SPEED,
    "extra_key": _SPEED,
    "custom_labels": "it is for counters of the server",
    "stream_interval": "a stream has a chunk for each piece",
    "spaces_between_special_tokens": "control tokens are left out of answers",
    "truncation_side": "it is for truncate_prompt_tokens, which is refused",
    "return_mm_kwargs": "it is for other routes",
    "routed_dp_rank": _SPEED,
    "disagg_prefill_dp_rank": _SPEED,
    "data_parallel_rank": _SPEED,
    "cache_prompt": "every prompt is kept that can be, and no answer depends on it",
    "id_slot": _SPEED,
    "n_keep": "no context is shifted: an answer ends where it is full",
    "timings_per_token": "the times of an answer are in its object moeinf",
    "return_progress": "a stream always tells how far the prompt is read",
    "sse_ping_interval": "a silent stream has a comment every ten seconds",
    "backend_sampling": _SPEED,
    "mirostat_tau": "it is for mirostat, which is refused",
    "mirostat_eta": "it is for mirostat, which is refused",
    "dynatemp_exponent": "it is for dynatemp_range, which is refused",
    "xtc_threshold": "it is for xtc_probability, which is refused",
    "dry_base": "it is for dry_multiplier, which is refused",
    "dry_allowed_length": "it is for dry_multiplier, which is refused",
    "dry_penalty_last_n": "it is for dry_multiplier, which is refused",
    "dry_sequence_breakers": "it is for dry_multiplier, which is refused",
    "adaptive_decay": "it is for adaptive_target, which is refused",
    "draft_model": _SPEED,
    "usage": "usage is always told; stream_options asks for it in a stream",
    "provider": "requests go to no other server",
    "route": "requests go to no other server",
}

FORMS: Final = (
    *("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    *("grammar", "json_schema", "regex", "ebnf"),
)
BUDGETS: Final = ("thinking_budget", "thinking_budget_tokens", "thinking_token_budget", "reasoning_budget_tokens")

BOTH: Final = Fields(_REFUSED, _SILENT)
CHAT: Final = BOTH | Fields(
    {
        "audio": Refused("models here answer with text", _NONE),
        "functions": Refused("use tools", ([],)),
        "function_call": Refused("use tools and tool_choice", ("auto", "none")),
        "modalities": Refused("models here answer with text alone", ([], ["text"])),
        "verbosity": Refused("say in a message how long an answer should be", ("medium",)),
        "web_search_options": Refused("nothing is fetched here; give a tool that searches", _NONE),
        "echo": Refused("the last message is not repeated", _FLAG),
        "add_special_tokens": Refused("the chat template writes them", _FLAG),
        "documents": Refused("put them into a message"),
        "chat_template": Refused("each checkpoint brings its own"),
        "stream_reasoning": Refused("thoughts come as they are made", _ON),
        "separate_reasoning": Refused("thoughts come apart from the answer", _ON),
        "reasoning_format": Refused("thoughts come as reasoning_content", ("", "auto", "deepseek")),
        "reasoning_in_content": Refused("thoughts come as reasoning_content", _FLAG),
        "thinking_forced_open": Refused("the chat template says whether a thought is open", _FLAG),
        "parse_tool_calls": Refused("calls come apart from text", _ON),
        "generation_prompt": Refused("the chat template writes it"),
        "prompt_mode": Refused("give reasoning_effort", _NONE),
        "think": Refused("give reasoning_effort", _NONE),
        **{name: Refused("give a message of the role system") for name in ("system", "system_prompt", "instructions")},
        "images": Refused("put them into a message"),
        "prompt": Refused("give messages, or ask /v1/completions"),
        "input": Refused("give messages, or ask /v1/responses"),
        **{name: Refused("give response_format") for name in ("output_config", "output_format")},
    },
    {"chat_format": "the chat template says it"},
)
TEXT: Final = BOTH | Fields(
    {
        "suffix": Refused("models here do not fill in the middle"),
        "add_special_tokens": Refused("the tokens that the tokenizer adds are added", _ON),
        "prompt_embeds": Refused("give texts"),
        **{
            name: Refused("put it into the prompt") for name in ("system", "system_prompt", "instructions", "documents")
        },
        "input": Refused("give prompt"),
        "max_completion_tokens": Refused("give max_tokens", _NONE),
        "top_logprobs": Refused("give logprobs, which is a number here", (0,)),
        # What a chat template would write.
        **{
            name: Refused("a prompt is continued as it is; ask /v1/chat/completions")
            for name in ("messages", "tools", "functions", "images", "chat_template_kwargs", *THOUGHTS, *BUDGETS)
        },
        "tool_choice": Refused("a prompt is continued as it is; ask /v1/chat/completions", ("none", "auto")),
    }
)
EMBEDDINGS: Final = Fields(
    {
        "add_special_tokens": Refused("the tokens that the tokenizer adds are added", _ON),
        "truncate_prompt_tokens": Refused("a text is read whole, or refused", _NONE),
        "normalize": Refused("vectors have length 1", _ON),
        "embed_dtype": Refused("numbers are float32", ("float32",)),
        "messages": Refused("give input"),
        "prompt": Refused("give input"),
    },
    {"request_id": "answers have ids of their own"},
)
STREAM: Final = Fields(
    {"continuous_usage_stats": Refused("the usage of a stream comes at its end", _FLAG)},
    {"include_obfuscation": "streams here are not padded"},
)
MESSAGE: Final = Fields(
    {"audio": Refused("models here read text and images"), "images": Refused("put them into content, as image_url")},
    {"annotations": "they say where an answer's text was found"},
    log_unknown,
)
REASONING: Final = Fields({}, {"summary": "thoughts are told as they are"})
THINKING: Final = Fields({}, {"clear_thinking": "the chat template says which thoughts are shown again"})
STRUCTURED: Final = Fields(
    {
        "structural_tag": Refused("give tools and tool_choice, or a grammar"),
        "whitespace_pattern": Refused("say it in a grammar"),
        "disable_any_whitespace": Refused("say it in a grammar", _FLAG),
        "disable_additional_properties": Refused("say it in the schema", _FLAG),
    },
    {"disable_fallback": "there is nothing to fall back to"},
)
