"""`moeinf doctor` and `moeinf fit`. Heavy imports are inside the verbs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from moeinf.config import RuntimeConfig
from moeinf.config.environment import store_home
from moeinf.config.option import option_of, options
from moeinf.config.pull_options import PullOptions
from moeinf.errors import MoeinfError
from moeinf.terminal.arguments.flags import with_flags
from moeinf.terminal.arguments.shell_completion import model_names
from moeinf.terminal.screen import print_fitted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moeinf.engine.speed.rates import Disks, Kind, Rates
    from moeinf.forecast.subject import Subject
    from moeinf.store.library import StoredModel

_PLANNED = ("ram", "expert_cache", "context", "kv_cache", "threads", "prefill_chunk", "prefix_memory", "also")
_UNPLANNED = tuple(each.name for each in options(RuntimeConfig) if each.name not in _PLANNED)


def doctor(
    again: Annotated[bool, typer.Option("--again", help="Measure again what was measured before.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure this machine once, and say what is to be mended.

    The rates of its disk, memory and CPU take half a minute, and are kept in the store's folder for `moeinf fit`. They
    are measured again on another machine. The exit code is 1 where something has to be mended.
    """
    from moeinf.bench.forecast.checkup import check_machine, check_rates
    from moeinf.bench.forecast.forecast_report import doctor_json, doctor_lines
    from moeinf.forecast.products import MAIN_KINDS
    from moeinf.hardware import machine

    here = machine()
    rates = _rates(RuntimeConfig(), MAIN_KINDS, again=again)
    findings = [*check_machine(store_home(), here, rates.conditions.isa), *check_rates(rates)]
    if json:
        print(doctor_json(findings, rates))
    else:
        print_fitted("\n".join(doctor_lines(findings, rates)))
    if any(each.remedy for each in findings):
        raise typer.Exit(1)


@with_flags(without=_UNPLANNED)
def fit(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A stored model, org/repo[:GGUF tag][@rev], a folder, or a GGUF file.",
            autocompletion=model_names,
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quant: Annotated[str | None, typer.Option(metavar="FORMAT", help=option_of(PullOptions, "quant").help)] = None,
    token: Annotated[str | None, typer.Option(metavar="TOKEN", help=option_of(PullOptions, "token").help)] = None,
    *,
    config: RuntimeConfig,
) -> None:
    """Say what a model will take here, and how fast it will be.

    Reads headers alone: nothing is downloaded but those. Memory is planned as `run` plans it on a CPU; speed follows
    from the rates that `moeinf doctor` has measured, or measures now. How fast weights of the model's formats and
    widths are read is measured the first time that a model has them, in a fraction of a second.
    """
    from moeinf.forecast.subject import subject_of
    from moeinf.terminal.pull_progress import PullDisplay

    with PullDisplay(sys.stderr, quiet=not sys.stderr.isatty()) as display:
        subject = subject_of(model, quant, token, store_home(), display)
    (print if json else print_fitted)(forecast_text(subject, config, as_json=json))


def planned_text(model: str, config: RuntimeConfig, quant: str | None) -> str:
    """One line for `run --plan`: the choice, and what follows from it."""
    from moeinf.bench.forecast.forecast_report import plan_line
    from moeinf.forecast.subject import disks_of, forecast_of, subject_of
    from moeinf.hardware import machine

    subject = subject_of(model, quant, None, store_home())
    disks = disks_of(subject, config)
    return plan_line(forecast_of(subject, config, machine(), lambda kinds: _rates(config, kinds, disks)))


def stored_forecast(stored: StoredModel) -> str:
    """For `show --plan`: what `fit` prints of a stored model."""
    from moeinf.config.environment import with_environment
    from moeinf.forecast.subject import stored_subject

    return forecast_text(stored_subject(stored), with_environment())


def forecast_text(subject: Subject, config: RuntimeConfig, *, as_json: bool = False) -> str:
    """What `fit` prints of a model. Raises OutOfMemoryError where it cannot run."""
    from moeinf.bench.forecast.forecast_report import fit_json, fit_lines
    from moeinf.forecast.subject import disks_of, forecast_of
    from moeinf.hardware import machine
    from moeinf.pull.steps import free_bytes

    disks = disks_of(subject, config)
    found = forecast_of(subject, config, machine(), lambda kinds: _rates(config, kinds, disks))
    _say_gpu()
    free = free_bytes(store_home())
    return fit_json(subject, found, free) if as_json else "\n".join(fit_lines(subject, found, free))


def _rates(config: RuntimeConfig, kinds: Sequence[Kind], disks: Disks | None = None, *, again: bool = False) -> Rates:
    """disks: those that are read beside the store's; None: those of all folders that the store knows are told of."""
    from moeinf.forecast.known import known_rates
    from moeinf.terminal.progress import StatusLine
    from moeinf.terminal.screen import can_draw
    from moeinf.terminal.user_notes import say

    line, said = StatusLine(sys.stderr, enabled=can_draw(sys.stderr)), set[str]()

    def report(text: str) -> None:
        line.show(text)
        note = "note: measuring this machine, which takes half a minute and is kept for the next time"
        if not sys.stderr.isatty() and note not in said:
            said.add(note)
            say(note)

    try:
        folders = _folders_there() if disks is None else disks.folders
        rates = known_rates(store_home(), config, report, again=again, kinds=kinds, folders=folders)
    finally:
        line.clear()
    if (then := rates.conditions).was_busy:
        say(
            f"note: other programs computed when this machine was measured (load {then.load:g}, {then.threads} threads "
            "here), so that the rates may be too low; `moeinf doctor --again` measures it once they have ended"
        )
    return rates if disks is None else rates.with_disks(disks)


def _folders_there() -> list[str]:
    from pathlib import Path

    from moeinf.store.spread.copy_list import CopyList

    folders = dict.fromkeys(copy.folder for copy in CopyList(store_home()).all())
    return [folder for folder in folders if Path(folder).is_dir()]


def _say_gpu() -> None:
    """A forecast is of the CPU: whoever has a GPU is told so."""
    from moeinf.gpu.cuda import find_cuda
    from moeinf.terminal.user_notes import say

    try:
        gpu = find_cuda("auto", lambda line: say(f"note: {line}"))
    except MoeinfError as error:
        return say(f"note: {error}")
    if gpu is not None:
        say(f"note: the forecast is of the CPU; `run` uses {gpu.name} too, unless --device cpu is given")
