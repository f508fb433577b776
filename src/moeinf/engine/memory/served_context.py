"""How long a context is that nobody asked for, where many conversations come.

The first prompt of a coding agent has 5,000 to 19,000 tokens, more than the context of a single conversation has. So
the context is doubled as long as its keys and values cost little of what experts could have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from moeinf.config import RuntimeConfig

MOST_UNASKED: Final = 32_768  # tokens; a server gives more where a prompt needs it
LEFT_SHARE: Final = 2  # of what all experts leave, a half,
STREAMED_SHARE: Final = 32  # or a 32nd of what experts and contexts have together


def served_context(
    context: int,
    most: int,
    config: RuntimeConfig,
    room: Callable[[int], int],
    tokens: Callable[[int], int],
    sizes: tuple[int, int],
) -> int:
    """The context, or one of up to `most` tokens where it was not asked for and many conversations come.

    room: of a context, bytes that keys, values and experts may have beside it. tokens: that there is room for in all.
    sizes: bytes of a token's keys and values, and of all experts.
    """
    if config.memory.context is not None or not config.many_conversations:
        return context
    token_bytes, experts_bytes = sizes
    most = min(most, MOST_UNASKED)
    while context < most:
        longer = min(2 * context, most)
        left = room(longer)
        if tokens(longer) * token_bytes > max((left - experts_bytes) // LEFT_SHARE, left // STREAMED_SHARE):
            break
        context = longer
    return context
