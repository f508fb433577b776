"""What `moeinf compare` may be told, beside how the models are run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from moeinf.config.option import option
from moeinf.errors import UsageError

LEAST_WINDOW: Final = 16  # tokens


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """The text that models are compared on. Raises UsageError for numbers that are too small."""

    text: str | None = option(
        None, "Text to compare on, one like those that the models are for. [default: built in, short]", metavar="FILE"
    )
    tokens: int = option(8192, "Most tokens of the text that are read. [default: {default}]", metavar="N")
    window: int = option(
        512,
        "The text is read in pieces of so many tokens, each on its own; the second half of each counts. "
        "[default: {default}]",
        metavar="TOKENS",
    )

    def __post_init__(self) -> None:
        if self.window < LEAST_WINDOW:
            raise UsageError(f"--window must be at least {LEAST_WINDOW}, not {self.window}")
        if self.tokens < self.window:
            raise UsageError(
                f"--tokens {self.tokens} is less than one --window of {self.window}; raise one, or lower the other"
            )
