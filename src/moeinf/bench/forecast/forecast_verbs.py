"""`moeinf doctor` and `moeinf fit`. Heavy imports are inside the verbs."""

from __future__ import annotations

import sys
from contextlib import suppress
from json import dumps
from typing import TYPE_CHECKING, Annotated

import typer

from moeinf.config import RuntimeConfig
from moeinf.config.environment import store_home
from moeinf.config.option import option_of, options
from moeinf.config.pull_options import PullOptions
from moeinf.errors import MoeinfError, UsageError
from moeinf.terminal.arguments.flags import with_flags
from moeinf.terminal.arguments.shell_completion import model_names
from moeinf.terminal.screen import print_fitted

if TYPE_CHECKING:
    from moeinf.engine.speed.rates import Conditions
    from moeinf.forecast.cards import Card
    from moeinf.forecast.form_choice import Choice
    from moeinf.forecast.subject import Subject
    from moeinf.references.meaning import Meaning
    from moeinf.store.library import Library, StoredModel

_PLANNED = ("ram", "expert_cache", "context", "kv_cache", "threads", "prefill_chunk", "prefix_memory", "also")
_UNPLANNED = tuple(each.name for each in options(RuntimeConfig) if each.name not in _PLANNED)


def doctor(
    again: Annotated[bool, typer.Option("--again", help="Measure again what was measured before.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure this machine once, and say what is to be mended.

    The rates of its disk, memory and CPU take a quarter of a minute, and are kept in the store's folder for
    `moeinf fit`. They are measured again on another machine. The exit code is 1 where something has to be mended.
    """
    from moeinf.bench.forecast.checkup import check_machine, check_rates
    from moeinf.bench.forecast.forecast_report import doctor_json, doctor_lines
    from moeinf.forecast.products import MAIN_KINDS
    from moeinf.hardware import machine
    from moeinf.terminal.forms.told_rates import told_rates

    here = machine()
    rates = told_rates(RuntimeConfig(), MAIN_KINDS, again=again)
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
    card: Annotated[
        str | None, typer.Option(metavar="NAME", help="Also tell of this GPU, as if it were here: 'RTX 4090'.")
    ] = None,
    *,
    config: RuntimeConfig,
) -> None:
    """Say what a model will take here, and how fast it will be.

    Reads headers alone: nothing is downloaded but those. Memory is planned as `run` plans it on a CPU; speed follows
    from the rates that `moeinf doctor` has measured, or measures now. How fast weights of the model's formats and
    widths are read is measured the first time that a model has them, in a fraction of a second. Of a GPU that is here,
    or that --card names, decoding is foretold from the rates that its maker publishes.
    """
    from moeinf.forecast.cards import card_named
    from moeinf.terminal.forms.choosing import choice_shown
    from moeinf.terminal.forms.form_table import form_lines

    asked, on = PullOptions(quant=quant, token=token), None if card is None else card_named(card)
    found, library = _meaning(model, asked)
    doubted: list[Conditions] = []
    choice = choice_shown(found, library, config, doubted)
    if choice is not None and json:
        return print(dumps(choice.to_json(), indent=2))
    if choice is not None:
        print_fitted("\n".join([*form_lines(choice, "run"), ""]))
    (print if json else print_fitted)(
        forecast_text(_subject(found, library, choice), config, on, doubted, as_json=json)
    )


def planned_text(model: str, config: RuntimeConfig, quant: str | None) -> str:
    """One line for `run --plan`: the choice, and what follows from it."""
    from moeinf.bench.forecast.forecast_report import plan_line
    from moeinf.forecast.subject import disks_of, forecast_of
    from moeinf.hardware import machine
    from moeinf.terminal.forms.choosing import choice_shown
    from moeinf.terminal.forms.told_rates import told_rates

    found, library = _meaning(model, PullOptions(quant=quant))
    doubted: list[Conditions] = []
    subject = _subject(found, library, choice_shown(found, library, config, doubted))
    disks = disks_of(subject, config)
    return plan_line(
        forecast_of(subject, config, machine(), lambda kinds: told_rates(config, kinds, disks, doubted=doubted))
    )


def _meaning(reference: str, asked: PullOptions) -> tuple[Meaning, Library]:
    from moeinf.references.meaning import meaning
    from moeinf.store.library import Library

    library = Library(store_home())
    return meaning(reference, asked, library), library


def _subject(found: Meaning, library: Library, choice: Choice | None) -> Subject:
    """choice: of the forms of a known model, of which one is taken."""
    from moeinf.forecast.subject import stored_subject, subject_of_form, subject_of_headers
    from moeinf.pull.forms.published import form_of_tag
    from moeinf.references.fetching import origin_of, told_what_is_here
    from moeinf.terminal.pull_progress import PullDisplay

    if choice is not None:
        return subject_of_form(choice.name, choice.taken.form)
    if found.stored is not None:
        return stored_subject(found.stored)
    with told_what_is_here(library), PullDisplay(sys.stderr, quiet=not sys.stderr.isatty()) as display:
        if found.known is not None:
            form = form_of_tag(found.known, found.tag, found.options, library, display)
            return subject_of_form(found.reference, form)
        return subject_of_headers(found.reference, origin_of(found, library), found.options, library.home, display)


def stored_forecast(stored: StoredModel) -> str:
    """For `show --plan`: what `fit` prints of a stored model."""
    from moeinf.config.environment import with_environment
    from moeinf.forecast.subject import stored_subject

    return forecast_text(stored_subject(stored), with_environment())


def forecast_text(
    subject: Subject,
    config: RuntimeConfig,
    card: Card | None = None,
    doubted: list[Conditions] | None = None,
    *,
    as_json: bool = False,
) -> str:
    """What `fit` prints of a model, and of a card that was named or is here. doubted: as of `told_rates`. Raises
    OutOfMemoryError where it cannot run, also on a card that was named."""
    from moeinf.bench.forecast.forecast_report import fit_json, fit_lines
    from moeinf.forecast.cards import card_forecast
    from moeinf.forecast.subject import disks_of, forecast_of
    from moeinf.hardware import machine
    from moeinf.pull.steps import free_bytes
    from moeinf.terminal.forms.told_rates import told_rates

    disks, here = disks_of(subject, config), machine()
    found = forecast_of(subject, config, here, lambda kinds: told_rates(config, kinds, disks, doubted=doubted))
    on_card = None
    if card is not None:
        on_card = card_forecast(subject.outline, subject.preset.configured(config), here, card)
    elif (there := _card_here()) is not None:
        with suppress(MoeinfError):  # too small a card: what is foretold of the CPU is what `run` does
            on_card = card_forecast(subject.outline, subject.preset.configured(config), here, there)
    free = free_bytes(store_home())
    return fit_json(subject, found, free, on_card) if as_json else "\n".join(fit_lines(subject, found, free, on_card))


def _card_here() -> Card | None:
    """The GPU of this machine, where what its maker publishes is known; else a line says that it is left out."""
    from moeinf.forecast.cards import card_named
    from moeinf.gpu.cuda import find_cuda
    from moeinf.terminal.user_notes import say

    try:
        gpu = find_cuda("auto", lambda line: say(f"note: {line}"))
        return None if gpu is None else card_named(gpu.name, gpu.total_bytes)
    except UsageError:
        say(f"note: the forecast is of the CPU; `run` uses {gpu.name} too, unless --device cpu is given")  # type: ignore[union-attr]
    except MoeinfError as error:
        say(f"note: {error}")
    return None
