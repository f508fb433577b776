"""The tokens that end an answer, which checkpoints forget to list as end of sequence; without them no chat stops."""

from __future__ import annotations

from typing import Final

ENDS_MESSAGE: Final = "<|end|>"  # in gpt-oss, and in Solar with its other two ends, it ends no more than a message
ENDS_BESIDE: Final = ("<|calls|>", "<|flush|>")
TURN_ENDS: Final = frozenset(
    {
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|return|>",
        "<|call|>",
        "<|calls|>",  # Solar's
        "<|flush|>",
        "<end_of_turn>",
        "<|end_of_turn|>",
        "<|END_OF_TURN_TOKEN|>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",  # DeepSeek's
        "[EOT]",  # Kimi's
        "<|end_of_msg|>",  # Kimi K3's
        "[EOS]",
        "[e~[",  # MiniMax's
        "<|end_of_sentence|>",  # of ERNIE's turns but the last
        "<|separator|>",  # Grok-2's
        "<turn|>",  # Gemma's
        "<|tool_response>",
    }
)
