"""Which form of a known model this machine should have, by the forecast of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.memory.plan import PROCESS_BYTES, smallest_bytes
from moeinf.engine.speed.rates import Kind, Rates
from moeinf.engine.stored.outline import outline_of_headers
from moeinf.errors import DiskSpaceError, OutOfMemoryError
from moeinf.forecast.forecast import Forecast, KnownRates, forecast
from moeinf.forecast.format_quality import divergence_of, measured
from moeinf.hardware import Machine, machine
from moeinf.pull.forms.form import Form, Found
from moeinf.pull.steps import free_bytes
from moeinf.store.library import Library
from moeinf.store.naming.catalogue import KnownModel, form_name
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
        told: JsonObject = {"name": self.name, "taken": self.taken.form.tag, "notes": list(self.found.notes)}
        told["kl_measured_on"] = measured().measured_on
        return told | {"forms": [self._form(row) for row in self.rows], "disk_free_bytes": self.free_bytes}

    def _form(self, row: FormForecast) -> JsonObject:
        form = row.form
        return {
            "tag": form.tag,
            "name": form_name(self.name, form.tag),
            "repository": form.where,
            "download_bytes": form.download_bytes,
            "download_s": round(form.download_bytes / rate) if (rate := self.found.bytes_per_s) else None,
            "store_bytes": form.store_bytes,
            "needed_bytes": form.needed_bytes,
            "bits_per_weight": round(form.bits, 2),
            "kl_about": divergence_of(form.tag),
            "least_memory_bytes": row.least_bytes,
            "resident_share": round(row.forecast.resident_share, 4) if row.forecast else None,
            "decode_tokens_per_s": round(row.tokens_per_s, 3) if row.forecast else None,
            "fits_disk": has_room(form, self.free_bytes),
            "fault": row.fault,
        }

    def of_tag(self, tag: str) -> FormForecast | None:
        return next((row for row in self.rows if row.form.tag == tag.lower()), None)


def choice_among(
    model: KnownModel, name: str, options: PullOptions, config: RuntimeConfig, home: Path, rates: KnownRates
) -> Choice:
    """The forms of a known model, and the one to be taken. name: of the model, as it was asked for.

    Raises HubError, OutOfMemoryError and DiskSpaceError, which say the least that would do, where no form can run here.
    """
    from moeinf.pull.forms.published import published_forms  # loads the Hub's client, which takes 0.2 s

    name = options.name or name
    found, here = published_forms(model, name, options, Library(home)), machine()
    rows, free = tuple(_forecast_of(form, config, here, rates) for form in found.forms), free_bytes(home)
    more = "end other programs" if config.memory.ram is None else "raise --ram"
    return Choice(name, model, found, rows, taken(name, rows, free, more), free)


def usual_form(
    model: KnownModel, name: str, options: PullOptions, config: RuntimeConfig, home: Path, tell: Callable[[str], None]
) -> Form:
    """The form that is taken where nobody is asked. tell: takes a line about it, and about measuring this machine.

    Raises as `choice_among`.
    """
    choice = choice_among(model, name, options, config, home, rates_here(home, config, tell))
    tell(f"{choice.name}: {choice.line}")
    return choice.taken.form


def rates_here(home: Path, config: RuntimeConfig, tell: Callable[[str], None]) -> KnownRates:
    """The rates of this machine, which are measured when they are first asked for. tell: takes lines about that."""

    def rates(kinds: Sequence[Kind]) -> Rates:
        from moeinf.forecast.known import known_rates  # loads all that a measurement needs

        return known_rates(home, config, tell, kinds=kinds)

    return rates


def has_room(form: Form, free: int) -> bool:
    """Whether the form leaves a tenth of the free disk alone."""
    return form.needed_bytes <= free * _DISK_SHARE


def taken(name: str, rows: Sequence[FormForecast], free: int, more: str) -> FormForecast:
    """Of the forms that run here and leave a tenth of the free disk: the best that answers at LEAST_TOKENS_PER_S or
    more, else the fastest. rows: the best first. more: what would give memory. Raises OutOfMemoryError,
    DiskSpaceError."""
    running = [row for row in rows if row.forecast is not None]
    if not running:
        least = min(rows, key=lambda row: row.least_bytes)
        raise OutOfMemoryError(
            f"no form of {name} runs in the memory of this machine: {least.form.tag} needs "
            f"{at_least_text(least.least_bytes)} at least; {more}, or take a smaller model "
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
