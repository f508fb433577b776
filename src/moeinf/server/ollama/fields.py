"""Fields of ollama's API that are not obeyed. What it does not publish is logged, as ollama ignores it."""

from __future__ import annotations

from typing import Final

from moeinf.config import RuntimeConfig
from moeinf.config.option import http_options
from moeinf.sampling.params import SamplingParams
from moeinf.server.body_fields import Fields, Refused, log_unknown
from moeinf.server.openai.fields import BUDGETS, FORMS, OPTION_OBJECTS, THOUGHTS

_SILENT: Final = {
    "truncate": "a prompt that is too long is refused with both lengths, and never cut",
    "shift": "an answer ends where the context is full, with done_reason length",
}
_IMAGES = Refused("models here answer with text", (0,))
# Fields of other APIs, and options beside their object, that say what an answer must be. ollama ignores them; here the
# client is told.
_STRAY: Final = {
    name: Refused(f"ollama's API has no such field; {remedy}", ())
    for names, remedy in (
        ((*FORMS, "response_format"), "give format"),
        (BUDGETS, "num_predict among the options bounds thoughts and answer together"),
        (("continue_final_message", "add_generation_prompt"), "a last message of the assistant is always continued"),
        (("tool_choice",), "leave tools out, or ask /v1/chat/completions"),
        (("logit_bias",), "ask /v1/chat/completions"),
        (
            ("max_tokens", "max_completion_tokens", "max_new_tokens", "max_output_tokens", "n_predict"),
            "give num_predict in options",
        ),
        (("stop_sequences",), "give stop in options"),
        (OPTION_OBJECTS, "give options"),
        ([name for name in THOUGHTS if name != "think"], "give think"),
        (("functions",), "give tools, to /api/chat"),
        (http_options("ollama", SamplingParams, RuntimeConfig), "give it in options"),
    )
    for name in names
}
ASKING: Final = Fields(
    {**_STRAY, "_debug_render_only": Refused("prompts are not told", (False,))}, _SILENT, log_unknown
)
CHAT: Final = ASKING | Fields(
    {
        **{name: Refused("give a message of the role system") for name in ("system", "system_prompt", "instructions")},
        "prompt": Refused("give messages, or ask /api/generate"),
        "input": Refused("give messages"),
        "images": Refused("put them into a message"),
    },
    unknown=log_unknown,
)
GENERATE: Final = ASKING | Fields(
    {
        "suffix": Refused("models here do not fill in the middle", words='"{model}" does not support insert'),
        "template": Refused("each checkpoint brings its own"),
        "context": Refused("send what was said before to /api/chat"),
        **{name: Refused("ask /api/chat") for name in ("messages", "tools", "chat_template_kwargs")},
        **{name: Refused("give system") for name in ("system_prompt", "instructions")},
        "input": Refused("give prompt"),
        "width": _IMAGES,
        "height": _IMAGES,
        "steps": _IMAGES,
    },
    unknown=log_unknown,
)
_SENT_ALONG = "ollama ignores it, too"
NAMED: Final = Fields({}, {}, log_unknown)
PULL: Final = NAMED | Fields({}, {name: _SENT_ALONG for name in ("insecure", "username", "password")}, log_unknown)
CREATE: Final = NAMED | Fields(
    {
        "modelfile": Refused("give from, system and parameters"),
        "template": Refused("each checkpoint brings its own chat template"),
        "messages": Refused("say it in system"),
        "adapters": Refused("pull the model with its adapter (--lora)"),
        "files": Refused("`moeinf pull` takes files, on the machine that holds them"),
        "quantize": Refused("`moeinf pull SOURCE --quant q8_0` stores a model so"),
        "quantization": Refused("`moeinf pull SOURCE --quant q8_0` stores a model so"),
    },
    {
        "license": "that of the checkpoint is told",
        "renderer": "each checkpoint brings its own chat template",
        "parser": "answers are read as the checkpoint's template has them",
        "requires": "it asks for a version of ollama",
        "info": "it is for models of another maker",
        "path": "ollama no longer reads it, either",
        "remote_host": "nothing is asked elsewhere",
    },
    log_unknown,
)
SHOW: Final = NAMED | Fields(
    {
        "system": Refused("what is shown is what is stored"),
        "template": Refused("what is shown is what is stored"),
        "options": Refused("what is shown is what is stored"),
    },
    unknown=log_unknown,
)
# What other APIs, and the other of ollama's two routes, call the text: without it a request would only load the model.
EMBED: Final = NAMED | Fields(
    {
        **{name: Refused("give input") for name in ("prompt", "prompts", "text", "texts", "content", "messages")},
        "encoding_format": Refused("vectors here are lists of numbers; ask /v1/embeddings", ("float",)),
    },
    unknown=log_unknown,
)
EMBEDDINGS: Final = NAMED | Fields(
    {
        **{name: Refused("give prompt, or ask /api/embed") for name in ("input", "text", "content", "messages")},
        **{name: Refused("ask /api/embed") for name in ("prompts", "texts", "dimensions")},
        "truncate": Refused("a text that is too long loses its end; ask /api/embed", (True,)),
        "encoding_format": Refused("a vector here is a list of numbers; ask /v1/embeddings", ("float",)),
    },
    unknown=log_unknown,
)
_GONE = "ollama no longer reads it, either"
_PLACED = "weights are placed by moeinf, and no answer depends on it"
# Options that mean nothing here are logged, whichever they are; these are known.
OPTIONS: Final = Fields(
    {},
    {
        **{name: _GONE for name in ("mirostat", "mirostat_tau", "mirostat_eta", "tfs_z", "penalize_newline")},
        **{name: _GONE for name in ("numa", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mlock")},
        **{name: _PLACED for name in ("main_gpu", "use_mmap")},
        "embedding_only": _GONE,
        "num_keep": "no context is shifted: an answer ends where it is full",
        "draft_num_predict": "it may change how fast an answer comes",
    },
    log_unknown,
)
