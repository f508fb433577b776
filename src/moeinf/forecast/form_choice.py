"""Which form of a known model this machine should have, by the forecast of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import NO_OPTIONS, PullOptions
from moeinf.engine.memory.plan import PROCESS_BYTES, smallest_bytes
from moeinf.engine.speed.rates import Kind, Rates
from moeinf.engine.stored.outline import outline_of_headers
from moeinf.errors import DiskSpaceError, HubError, OutOfMemoryError
from moeinf.forecast.forecast import Forecast, KnownRates, forecast
from moeinf.hardware import Machine, machine
from moeinf.pull.events import PullProgress
from moeinf.pull.forms.form import Form, Found
from moeinf.pull.origins import is_here
from moeinf.pull.steps import free_bytes
from moeinf.store.library import Library
from moeinf.store.naming.aliases import alias_of, known_forms, known_sources
from moeinf.store.naming.catalogue import KnownModel, form_name, known_form
from moeinf.store.naming.names import DEFAULT_TAG
from moeinf.store.quantisation import CHOICES
from moeinf.text.quantities import at_least_text, size_text
from moeinf.types import JsonObject

LEAST_TOKENS_PER_S: Final = 5.0  # as fast as one reads
_DISK_SHARE: Final = 0.9  # of what is free, that a form may take


@dataclass(frozen=True, slots=True)
class FormForecast:
    """A form, and what it would be here. forecast: None where it does not run, of which `fault` says why."""

    form: Form
    forecast: Forecast | None
    fault: str = ""
    least_bytes: int = 0  # of memory with which it runs

    @property
    def tokens_per_s(self) -> float:
        return self.forecast.decode.tokens_per_s if self.forecast else 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The forms of a model, the best first, and the one that is taken unless the user wants another."""

    name: str  # of the model, as it was asked for
    model: KnownModel
    found: Found
    rows: tuple[FormForecast, ...]
    taken: FormForecast
    free_bytes: int  # of the store's disk

    @property
    def tags(self) -> list[str]:
        """Of those that run here."""
        return [row.form.tag for row in self.rows if not row.fault]

    @property
    def line(self) -> str:
        """Which form is taken, and why."""
        why = f"the best that fits and answers at {LEAST_TOKENS_PER_S:g} tokens/s or more"
        if self.taken.tokens_per_s < LEAST_TOKENS_PER_S:
            why = f"the fastest of those that fit, none of which answers at {LEAST_TOKENS_PER_S:g} tokens/s"
        if len(self.rows) == 1:
            why = "the only one"
        form = self.taken.form
        return f"taking {form.tag} of {form.where}, {size_text(form.download_bytes)} to fetch: {why}"

    def to_json(self) -> JsonObject:
        """What `fit --json` prints, and GET /api/available/NAME answers."""
        told = {"name": self.name, "taken": self.taken.form.tag, "notes": list(self.found.notes)}
        return told | {"forms": [self._form(row) for row in self.rows], "disk_free_bytes": self.free_bytes}

    def _form(self, row: FormForecast) -> JsonObject:
        form = row.form
        return {
            "tag": form.tag,
            "name": form_name(self.name, form.tag),
            "repository": form.where,
            "download_bytes": form.download_bytes,
            "store_bytes": form.store_bytes,
            "needed_bytes": form.needed_bytes,
            "bits_per_weight": round(form.bits, 2),
            "least_memory_bytes": row.least_bytes,
            "resident_share": round(row.forecast.resident_share, 4) if row.forecast else None,
            "decode_tokens_per_s": round(row.tokens_per_s, 3) if row.forecast else None,
            "fits_disk": has_room(form, self.free_bytes),
            "fault": row.fault,
        }

    def of_tag(self, tag: str) -> FormForecast | None:
        return next((row for row in self.rows if row.form.tag == tag.lower()), None)


def wants_choice(reference: str, options: PullOptions, home: Path) -> KnownModel | None:
    """The known model of which a reference leaves open which form is meant; None where it is here or was begun.

    Raises UsageError for a file of aliases that is not sound.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return None  # then the Hub's cache is looked into, which has what it has
    plain = replace(options, name=None, token=None, also=None, force=False, keep_source=False)
    return known_forms(reference, home) if plain == NO_OPTIONS and _is_new(reference, options, home) else None


def named_form(
    reference: str, options: PullOptions, home: Path, progress: PullProgress | None = None
) -> tuple[str, PullOptions] | None:
    """What `pull` takes for a reference that ends in the tag of a form of a known model; None for any other.

    Raises ModelNotFoundError for a tag that there is not, and HubError.
    """
    found = known_form(reference) if options.quant is None and options.revision is None else None
    if found is None or not _is_new(reference, options, home) or known_sources(home).get(alias_of(reference)):
        return None
    model, tag = found
    if model.checkpoint.kind != "hub":
        return (model.name, replace(options, quant=tag)) if tag in CHOICES else None
    from moeinf.pull.forms.published import form_of_tag  # loads the Hub's client, which takes 0.2 s

    form = form_of_tag(model, tag, options, Library(home), progress)
    return form.reference, form.options


def _is_new(reference: str, options: PullOptions, home: Path) -> bool:
    library = Library(home)
    return not any(is_here(each, library) for each in (reference, options.name) if each)


def forms_of(model: KnownModel, name: str, options: PullOptions, home: Path) -> Found:
    """As published_forms. Raises HubError, which names the models that are here."""
    from moeinf.pull.forms.published import published_forms

    try:
        return published_forms(model, options.name or name, options, Library(home))
    except HubError as error:
        here = [stored.name.removesuffix(f":{DEFAULT_TAG}") for stored in Library(home).list()]
        raise HubError(f"{error}; models that are here: {', '.join(here)}" if here else str(error)) from error


def choice_among(
    reference: str, options: PullOptions, config: RuntimeConfig, home: Path, rates: KnownRates
) -> Choice | None:
    """The forms of the known model that a reference means, and the one to be taken; None where it leaves none open.

    Raises HubError, OutOfMemoryError and DiskSpaceError, which say the least that would do, where no form can run here.
    """
    model = wants_choice(reference, options, home)
    if model is None:
        return None
    name = options.name or reference.lower().removesuffix(f":{DEFAULT_TAG}")
    found, here = forms_of(model, name, options, home), machine()
    rows, free = tuple(_forecast_of(form, config, here, rates) for form in found.forms), free_bytes(home)
    return Choice(name, model, found, rows, taken(name, rows, free), free)


def settled(
    reference: str,
    options: PullOptions,
    config: RuntimeConfig,
    home: Path,
    rates: KnownRates,
    decide: Callable[[Choice], Form],
) -> tuple[str, PullOptions]:
    """What `pull` is to be given for a reference: itself, or the form of a known model that it names, or that `decide`
    takes. Raises as `choice_among`; ModelNotFoundError for the tag of a form that there is not."""
    named = named_form(reference, options, home)
    if named is not None:
        return named
    choice = choice_among(reference, options, config, home, rates)
    if choice is None:
        return reference, options
    form = decide(choice)
    return form.reference, form.options


def settled_unasked(
    reference: str, options: PullOptions, config: RuntimeConfig, home: Path, tell: Callable[[str], None]
) -> tuple[str, PullOptions]:
    """As `settled`, with the usual form. tell: takes a line about it, and about measuring this machine."""

    def decide(choice: Choice) -> Form:
        tell(f"{choice.name}: {choice.line}")
        return choice.taken.form

    return settled(reference, options, config, home, rates_here(home, config, tell), decide)


def rates_here(home: Path, config: RuntimeConfig, tell: Callable[[str], None]) -> KnownRates:
    """The rates of this machine, which are measured when they are first asked for. tell: takes lines about that."""

    def rates(kinds: Sequence[Kind]) -> Rates:
        from moeinf.forecast.known import known_rates  # loads all that a measurement needs

        return known_rates(home, config, tell, kinds=kinds)

    return rates


def has_room(form: Form, free: int) -> bool:
    """Whether the form leaves a tenth of the free disk alone."""
    return form.needed_bytes <= free * _DISK_SHARE


def taken(name: str, rows: Sequence[FormForecast], free: int) -> FormForecast:
    """Of the forms that run here and leave a tenth of the free disk: the best that answers at LEAST_TOKENS_PER_S or
    more, else the fastest. rows: the best first. Raises OutOfMemoryError, DiskSpaceError."""
    running = [row for row in rows if row.forecast is not None]
    if not running:
        least = min(rows, key=lambda row: row.least_bytes)
        raise OutOfMemoryError(
            f"no form of {name} runs in the memory of this machine: {least.form.tag} needs "
            f"{at_least_text(least.least_bytes)} at least; end other programs, or take a smaller model "
            "(`moeinf list --available`)"
        )
    fitting = [row for row in running if has_room(row.form, free)]
    if not fitting:
        least = min(running, key=lambda row: row.form.needed_bytes)
        raise DiskSpaceError(
            f"the disk has no room for any form of {name}: {least.form.tag} takes {size_text(least.form.needed_bytes)} "
            f"of {size_text(free)}, a tenth of which is left alone; free some, set MOEINF_HOME to a larger disk, or "
            f"take `{name}` by its tag to use all of it"
        )
    quick = [row for row in fitting if row.tokens_per_s >= LEAST_TOKENS_PER_S]
    return quick[0] if quick else max(fitting, key=lambda row: row.tokens_per_s)


def _forecast_of(form: Form, config: RuntimeConfig, machine: Machine, rates: KnownRates) -> FormForecast:
    headers = form.headers
    outline = outline_of_headers(headers.config, headers.generation, headers.manifest, headers.dense)
    least = smallest_bytes(outline.footprint, machine.cores) + PROCESS_BYTES
    try:
        return FormForecast(form, forecast(outline, config, machine, rates, {}), "", least)
    except OutOfMemoryError:
        return FormForecast(form, None, f"needs {at_least_text(least)} of memory", least)
