"""How good look-ahead's guesses are to be, where recorded routing takes the place of a model that would make them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from moeinf.config.option import option


@dataclass(frozen=True, slots=True)
class GuessOptions:
    """Without a recall, guesses are those that were recorded; traces/guesses.py checks and draws."""

    lookahead_recall: float | None = option(
        None, "Draw look-ahead's guesses from the routing: the share of a layer's experts that they name.", metavar="R"
    )
    lookahead_precision: float | None = option(
        None, "The share of what they name that is right. [default: the recall]", metavar="P"
    )
    lookahead_confidence: float = option(
        1.0, "How many times the weight of a wrong expert a right one has. [default: {default}]", metavar="X"
    )
    seed: int = option(0, "What guesses are drawn by. [default: {default}]", metavar="N")


RECORDED: Final = GuessOptions()  # nothing is drawn
