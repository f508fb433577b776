"""What `moeinf bench` may be told, beside how the model is run."""

from __future__ import annotations

from dataclasses import dataclass

from moeinf.config.option import option
from moeinf.config.server_options import MOST_PARALLEL
from moeinf.errors import UsageError


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What is run, how often, and the form of the figures. Raises UsageError for numbers that are too small."""

    num_prompt: int = option(
        128, "Length of the prompt. [default: {default}]", metavar="TOKENS", flags=("--num-prompt", "-p")
    )
    num_decode: int = option(
        64, "How many tokens to decode. [default: {default}]", metavar="TOKENS", flags=("--num-decode", "-n")
    )
    repeats: int = option(
        3, "How many warm requests follow the cold one. [default: {default}]", metavar="N", flags=("--repeats", "-r")
    )
    prompt_file: str | None = option(None, "Text to run on. [default: built in]", metavar="PATH")
    routing: str | None = option(None, "Route as this trace says, in place of the model's routers.", metavar="TRACE")
    output: str = option(
        "table",
        "Form of the figures: table, md, csv, json, jsonl. [default: {default}]",
        metavar="FORM",
        flags=("--output", "-o"),
    )
    policies: str | None = option(
        None, "Eviction policies, one after the other: names with commas, or all.", metavar="NAMES", flags=("--policy",)
    )
    predictors: str | None = option(
        None, "Predictors, likewise, each with every policy.", metavar="NAMES", flags=("--predictor",)
    )
    admission: str | None = option(
        None,
        "What is read ahead of what a predictor names: measured, what is worth its read, or none, everything, as in "
        "the paper; with commas, or all. [default: measured]",
        metavar="NAMES",
    )
    parallel: str | None = option(
        None, "Decode so many answers side by side as well: numbers with commas, such as 1,2,4,8.", metavar="N,..."
    )
    profile: bool = option(False, "Print where the time of a token went.", flags=("--profile",))
    plot: str | None = option(None, "Draw speed by memory and hits by share, into a new .svg or .png.", metavar="FILE")

    def __post_init__(self) -> None:
        self.counts()
        compared = (self.policies, self.predictors, self.admission) != (None, None, None)
        if self.parallel is not None and (compared or self.routing):
            raise UsageError("--parallel is for one policy and predictor, and the model's own routing")
        least = (
            ("--num-prompt", self.num_prompt, 1),
            ("--num-decode", self.num_decode, 2),
            ("--repeats", self.repeats, 0),
        )
        for flag, value, smallest in least:
            if value < smallest:
                raise UsageError(f"{flag} must be at least {smallest}, not {value}")

    def counts(self) -> tuple[int, ...]:
        """Of answers that are decoded side by side. Raises UsageError."""
        given = () if self.parallel is None else tuple(self.parallel.split(","))
        if not all(each.strip().isdigit() and 1 <= int(each) <= MOST_PARALLEL for each in given):
            raise UsageError(
                f"--parallel must be numbers from 1 to {MOST_PARALLEL} with commas between, not {self.parallel!r}"
            )
        return tuple(dict.fromkeys(map(int, given)))
