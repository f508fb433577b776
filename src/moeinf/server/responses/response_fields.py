"""Fields of the Responses API that are not obeyed."""

from __future__ import annotations

from typing import Final

from moeinf.server.body_fields import Fields, Refused
from moeinf.server.openai.fields import BOTH, BUDGETS, THOUGHTS

RESPONSE: Final = BOTH | Fields(
    {
        "background": Refused("an answer is made while its client waits", (False,)),
        "conversation": Refused("give previous_response_id, or the whole conversation as input"),
        "prompt": Refused("no prompts are kept here; send its text"),
        "context_management": Refused("edit the input, or set truncation to auto"),
        "max_completion_tokens": Refused("give max_output_tokens", ()),
        "messages": Refused("give input", ()),
        "modalities": Refused("models here answer with text alone", ([], ["text"])),
        **{name: Refused("give reasoning.effort", ()) for name in (*THOUGHTS, *BUDGETS) if name != "reasoning"},
        **{name: Refused("give instructions") for name in ("system", "system_prompt")},
        **{name: Refused("give text.format") for name in ("output_config", "output_format")},
        "functions": Refused("use tools", ([],)),
        "images": Refused("put them into input, as input_image"),
    },
    {
        "access_programs": "nothing is moderated here",
        "background_options": "it is for background, which is refused",
        "client_metadata": "nothing is kept of it",
        "image": "pictures are read as they are",
        "max_tool_calls": "it bounds the tools that run at OpenAI, of which there are none here",
    },
)
REASONING: Final = Fields({}, {"context": "all thoughts that are sent are read", "mode": "there is one"})
TEXT: Final = Fields({"verbosity": Refused("say in a message how long an answer should be", ("medium",))})
