"""From options to what is simulated, all of it checked before the first trace is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moeinf.bench.simulation.baselines import BASELINES
from moeinf.bench.simulation.belady import BOUND
from moeinf.bench.simulation.run import UNTIMED, Timing
from moeinf.config.simulate_options import SimulateOptions
from moeinf.config.size import Bytes, parse_size
from moeinf.errors import UsageError
from moeinf.runtime.policy.eviction import POLICIES
from moeinf.runtime.policy.predictors import NO_PREDICTOR, PREDICTORS, check_predictor
from moeinf.runtime.prefetch import MEASURED, admissions_of
from moeinf.terminal.traces.picture import check_new_picture
from moeinf.traces.guesses import LookAheadQuality, quality_of
from moeinf.traces.rows_of_steps import ALONE, StepForm

COMBINED: Final = ("look-ahead+eamc", "look-ahead+frequency")  # what `all` tries beside PREDICTORS
ALL: Final = "all"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be simulated of each trace."""

    shares: tuple[float, ...]  # percent of the experts that are resident
    policies: tuple[str, ...]
    predictors: tuple[str, ...]
    all_predictors: bool  # as many as a trace allows
    timing: Timing
    prefill_tokens: int
    drawn: LookAheadQuality | None  # None: look-ahead's guesses are those of the trace
    seed: int
    max_tokens: int | None
    expert_bytes: tuple[int, ...] = ()  # one for all experts, or one for those of each layer; none: the trace tells
    forms: tuple[StepForm, ...] = (ALONE,)  # of steps, each of which is simulated
    admissions: tuple[str, ...] = (MEASURED,)  # of what predictors name; see runtime/prefetch.py

    @property
    def timed(self) -> bool:
        return self.timing != UNTIMED

    @property
    def of_rows(self) -> bool:
        """Whether a step may have several rows."""
        return self.forms != (ALONE,)


def plan_of(options: SimulateOptions) -> Plan:
    """Raises UsageError for options that cannot be, and for a plot that would overwrite a file."""
    expert_bytes = _expert_bytes(options)
    timing = _timing(options, expert_bytes)
    if options.plot is not None:
        check_new_picture(Path(options.plot))
    predictors = _predictors(options.predictor)
    for name, value, least in (("--prefill", options.prefill, 0), ("--max-tokens", options.max_tokens, 1)):
        if value is not None and value < least:
            raise UsageError(f"{name} must be at least {least}, not {value}")
    policies = _policies(options.policy, timed=timing != UNTIMED)
    prefetches = timing != UNTIMED and set(predictors) != {NO_PREDICTOR} and not set(policies) <= set(BASELINES)
    return Plan(
        _shares(options.cache),
        policies,
        predictors,
        options.predictor == ALL,
        timing,
        options.prefill,
        quality_of(options),
        options.seed,
        options.max_tokens,
        expert_bytes,
        _forms(options),
        admissions_of(options.admission, prefetches=prefetches),
    )


def _forms(options: SimulateOptions) -> tuple[StepForm, ...]:
    drafts = _numbers("--draft", options.draft)
    if any(drafts) and options.acceptance is None:
        raise UsageError("--draft asks how often drafted tokens are right: give --acceptance 0.8, for instance")
    if options.acceptance is not None and not any(drafts):
        raise UsageError("--acceptance is of drafted tokens: give --draft, too")
    acceptance = options.acceptance or 0.0
    return tuple(
        StepForm(parallel, draft, acceptance if draft else 0.0)
        for parallel in _numbers("--parallel", options.parallel)
        for draft in drafts
    )


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"{name} {text!r} is no list of whole numbers; write for example 1,2,4") from None


def _expert_bytes(options: SimulateOptions) -> tuple[int, ...]:
    if options.expert_bytes is None:
        return ()
    sizes = [parse_size("--expert-bytes", part) for part in options.expert_bytes.split(",")]
    found = tuple(size.num_bytes for size in sizes if isinstance(size, Bytes) and size.num_bytes > 0)
    if len(found) < len(sizes):
        raise UsageError(f"--expert-bytes {options.expert_bytes!r} is no number of bytes; write for example 4.9MB")
    return found


def _timing(options: SimulateOptions, expert_bytes: tuple[int, ...]) -> Timing:
    given = options.link, options.compute
    if given == (None, None) and len(expert_bytes) != 1:  # several say what slots there are, whatever they take
        return UNTIMED
    if options.link is None or options.compute is None or not expert_bytes:
        raise UsageError("--link, --compute and --expert-bytes time a machine together: give all three, or none")
    if not 0 < options.link <= 1e6:
        raise UsageError(f"--link is a positive number of GB/s, not {options.link:g}")
    if not 0 <= options.compute <= 1e9:
        raise UsageError(f"--compute is a number of microseconds, not {options.compute:g}")
    mean_bytes = sum(expert_bytes) / len(expert_bytes)
    return Timing(mean_bytes / (options.link * 1e9), options.compute * 1e-6)


def _policies(text: str, *, timed: bool) -> tuple[str, ...]:
    known = (*POLICIES, BOUND, *BASELINES)
    if text == ALL:
        return known if timed else known[: -len(BASELINES)]
    names = _names(text)
    for name in names:
        if name not in known:
            raise UsageError(f"unknown policy {name!r}; known: {ALL}, {', '.join(known)}")
        if name in BASELINES and not timed:
            raise UsageError(f"{name} keeps no cache, and differs in time alone: give --link, too")
    return names


def _predictors(text: str) -> tuple[str, ...]:
    if text == ALL:
        return (*PREDICTORS, *COMBINED)
    names = _names(text)
    for name in names:
        check_predictor(name)
    return names


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text.split(",")))


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(dict.fromkeys(float(part.strip().removesuffix("%")) for part in text.split(",")))
    except ValueError:
        shares = ()
    if not shares or not all(0 < share <= 100 for share in shares):
        raise UsageError(f"--cache {text!r} is not a list of percents; write for example 10,20,35,50")
    return shares
