"""What `moeinf simulate` may be told."""

from __future__ import annotations

from dataclasses import dataclass

from moeinf.config.guess_options import GuessOptions
from moeinf.config.option import option


@dataclass(frozen=True, slots=True)
class MachineOptions(GuessOptions):
    """What takes how long. Without link, compute and expert_bytes nothing has a time, and nothing is read ahead."""

    link: float | None = option(None, "Time reads: what the disk, or a bus, reads in a second.", metavar="GB/s")
    compute: float | None = option(
        None, "Time layers: what one takes of a token beside waiting for experts.", metavar="US"
    )
    expert_bytes: str | None = option(
        None,
        "What is read of an expert: 4.9MB, for instance; or of one of each layer, with commas, which then have slots "
        "of their sizes. [default: what the trace says of that]",
        metavar="SIZES",
    )


@dataclass(frozen=True, slots=True)
class SimulateOptions(MachineOptions):
    """What is replayed, and on which machine; bench/simulation/simulation_plan.py checks it."""

    cache: str = option(
        "10,20,35,50", "Cache sizes, as percentages of the experts. [default: {default}]", metavar="PERCENTS"
    )
    policy: str = option("all", "Eviction policies, with commas, or all. [default: {default}]", metavar="NAMES")
    predictor: str = option("none", "Predictors, with commas, or all. [default: {default}]", metavar="NAMES")
    admission: str | None = option(
        None,
        "What is read ahead of what a predictor names: measured, what is worth its read, or none, everything, as in "
        "the paper; with commas, or all. [default: measured]",
        metavar="NAMES",
    )
    prefill: int = option(
        0, "Let so many tokens of each request go through together, where a trace does not say it.", metavar="N"
    )
    max_tokens: int | None = option(None, "Only the first N tokens of each trace.", metavar="N")
    parallel: str = option(
        "1",
        "Let so many requests of a trace go side by side, a row of each in a step; several numbers, with commas. "
        "[default: {default}]",
        metavar="NUMBERS",
    )
    draft: str = option(
        "0",
        "Let a step verify so many drafted tokens of each request; several numbers, with commas. [default: {default}]",
        metavar="NUMBERS",
    )
    acceptance: float | None = option(
        None, "The probability that a drafted token is right where those in front of it are.", metavar="A"
    )
    plot: str | None = option(None, "Draw the table, too, into a new file: .svg or .png.", metavar="FILE")
