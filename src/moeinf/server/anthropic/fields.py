"""Fields of Anthropic's API that are not obeyed, those of its beta among them."""

from __future__ import annotations

from typing import Final

from moeinf.server.body_fields import Fields, Refused
from moeinf.server.openai.fields import BUDGETS, FORMS, OPTION_OBJECTS, THOUGHTS
from moeinf.types import JsonObject

_ACCOUNT = "nobody is charged here"
_SPEED = "it may change how fast an answer comes"
_ALL_THOUGHTS: JsonObject = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}

_SILENT: Final = {
    "cache_control": "every prompt is kept that can be",
    "speed": _SPEED,
    "user_profile_id": _ACCOUNT,
    "workspace_id": _ACCOUNT,
    "billing_policy": _ACCOUNT,
    "betas": "it is a header",
}
_REFUSED: Final = {
    "context_management": Refused("edit the messages before they are sent", ({}, {"edits": []}, _ALL_THOUGHTS)),
    "mcp_servers": Refused("nothing is fetched here; give tools"),
    "compaction": Refused("send the messages that are to be read"),
    "thread": Refused("nothing is kept of requests; send all messages"),
}
PROMPT: Final = Fields(_REFUSED, _SILENT)
# Fields of other APIs that say what an answer must be.
_STRAY: Final = {
    **{name: Refused("give output_config.format", ()) for name in (*FORMS, "response_format", "format")},
    **{name: Refused("give thinking.budget_tokens", ()) for name in BUDGETS},
    **{
        name: Refused("give thinking, or output_config.effort", ())
        for name in (*THOUGHTS, "chat_template_kwargs")
        if name != "thinking"
    },
    "stop": Refused("give stop_sequences"),
    "max_completion_tokens": Refused("give max_tokens", ()),
    **{name: Refused("give system") for name in ("system_prompt", "instructions")},
    **{name: Refused("give messages") for name in ("prompt", "input")},
    "images": Refused("put them into content"),
    "functions": Refused("use tools"),
    "parallel_tool_calls": Refused("give tool_choice.disable_parallel_tool_use", (True,)),
    **{name: Refused("give its members beside model") for name in (*OPTION_OBJECTS, "options")},
    **{
        name: Refused("Anthropic's API has no such field; ask /v1/chat/completions", nothing)
        for names, nothing in (
            (("presence_penalty", "frequency_penalty", "min_p", "min_tokens", "top_logprobs"), (0,)),
            (("repetition_penalty", "repeat_penalty", "typical_p", "n"), (1,)),
            (("logit_bias", "logprobs"), (False, {})),
            (("seed", "repeat_last_n"), ()),
        )
        for name in names
    },
}
MESSAGE: Final = PROMPT | Fields(
    {**_STRAY, "fallbacks": Refused("a request names one model")},
    {
        "container": "it is for tools that run at Anthropic, which are refused",
        "diagnostics": "what of a prompt was reused is told in usage",
        "inference_geo": "requests are answered by this machine",
        "service_tier": _ACCOUNT,
        "fallback_credit_token": _ACCOUNT,
    },
)
TOOL: Final = Fields(
    {
        "allowed_callers": Refused("tools are called by the model alone", ([], ["direct"])),
        "input_examples": Refused("put them into the description"),
    },
    {
        "cache_control": _SILENT["cache_control"],
        "defer_loading": "it is for tools that look for others at Anthropic, which are refused: all are told here",
        "eager_input_streaming": "the arguments of calls always come as they are written",
        "strict": "a call that tool_choice demands always follows the schema; others are as the model writes them",
    },
)
OUTPUT: Final = Fields({"task_budget": Refused("max_tokens bounds an answer")})
NESTED: Final = Fields()
THINKING: Final = Fields({}, {"block_binding": "signatures are not checked"})
