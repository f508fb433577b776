"""The model that a forecast is asked for: stored, or known by its headers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.memory.plan import PROCESS_BYTES, smallest_bytes
from moeinf.engine.speed.rates import STORE_ALONE, Disks
from moeinf.engine.stored.hit_record import HitCount, load_hits
from moeinf.engine.stored.other_disks import also_folder, usable_copies
from moeinf.engine.stored.outline import Outline, outline_of, outline_of_headers
from moeinf.engine.stored.preset import NO_PRESET, Preset, preset_of
from moeinf.errors import OutOfMemoryError, UsageError
from moeinf.forecast.forecast import Forecast, KnownRates, forecast
from moeinf.hardware import Machine
from moeinf.pull.events import PullProgress
from moeinf.pull.forms.form import Form
from moeinf.pull.origins import Origin
from moeinf.pull.pull import read_headers
from moeinf.store.library import StoredModel
from moeinf.store.quantisation import SMALL
from moeinf.store.spread.whole import strides_of
from moeinf.text.quantities import at_least_text, binary_size_text


@dataclass(frozen=True, slots=True)
class Subject:
    name: str
    outline: Outline
    store_bytes: int
    stored: bool
    record: Mapping[int, HitCount]  # of earlier runs
    preset: Preset = NO_PRESET  # what goes with its name
    smaller: Outline | None = None  # the same model in fewer bits, where a pull could store it so
    model: StoredModel | None = None  # None where it is not stored


def subject_of_headers(
    name: str, origin: Origin, options: PullOptions, home: Path, progress: PullProgress | None = None
) -> Subject:
    """What a pull of it would store. name: by which it was asked for. Reads headers alone, of files or of the Hub.

    Raises what a pull would: ModelNotFoundError, CheckpointError, UnsupportedModelError, HubError, UsageError.
    """
    headers = read_headers(origin, options, home=home, progress=progress)
    outline = outline_of_headers(headers.config, headers.generation, headers.manifest, headers.dense)
    smaller = None
    if options.quant is None and headers.manifest.in_place is None:
        small = read_headers(origin, replace(options, quant=SMALL.tag), home=home)
        smaller = outline_of_headers(small.config, small.generation, small.manifest, small.dense)
    return Subject(name, outline, headers.store_bytes, False, {}, smaller=smaller)


def subject_of_form(name: str, form: Form) -> Subject:
    """One of the forms in which a model is published."""
    headers = form.headers
    outline = outline_of_headers(headers.config, headers.generation, headers.manifest, headers.dense)
    return Subject(name, outline, headers.store_bytes, False, {})


def stored_subject(stored: StoredModel) -> Subject:
    outline, record = outline_of(stored), load_hits(stored)
    return Subject(stored.name, outline, stored.size_bytes, True, record, preset_of(stored), model=stored)


def disks_of(subject: Subject, config: RuntimeConfig) -> Disks:
    """The other disks that a run would read from. Of a model that is not stored, the one that --also names.

    Raises UsageError for a folder that is not there, and as the run would.
    """
    if subject.model is None:
        folder = also_folder(config)
        if folder is not None and not folder.is_dir():
            raise UsageError(f"--also: {folder} is no folder that is there; make it, or mount its disk")
        return STORE_ALONE if folder is None else Disks((str(folder),))
    copies = usable_copies(subject.model, config, lambda line: None)
    if not copies or not copies[0].divided:
        return Disks(tuple(copy.folder for copy in copies))
    shares = [first / stride for first, stride in zip(copies[0].first_bytes, strides_of(subject.model), strict=True)]
    return Disks((copies[0].folder,), sum(shares) / len(shares))


def forecast_of(subject: Subject, config: RuntimeConfig, machine: Machine, known_rates: KnownRates) -> Forecast:
    """As `forecast` of this machine.

    Raises OutOfMemoryError, with what would help, where the model cannot run; UsageError as the run would.
    """
    config = subject.preset.configured(config)
    try:
        return forecast(subject.outline, config, machine, known_rates, subject.record)
    except OutOfMemoryError as error:
        least = _least_bytes(subject.outline, machine)
        asked = [config.memory.context, config.memory.prefill_chunk, config.memory.expert_cache]
        if any(each is not None for each in asked):
            raise  # what was asked for is too much, and the message says which
        raise OutOfMemoryError(
            f"{subject.name} does not fit: it needs {at_least_text(least)} at least, "
            f"{binary_size_text(_given_bytes(config, machine))} {_bound(config, machine)}; "
            f"{_remedies(subject, config, machine, least)}"
        ) from error


def _remedies(subject: Subject, config: RuntimeConfig, machine: Machine, least: int) -> str:
    more = f"raise --ram to {at_least_text(least)}" if config.memory.ram is not None else "end other programs"
    fewer = "take a GGUF file of it in fewer bits"
    if subject.smaller is not None:
        fewer = f"store it in fewer bits (--quant q4_k needs {at_least_text(_least_bytes(subject.smaller, machine))})"
    return f"{more}, {fewer}, or take a smaller model (`moeinf list --available`)"


def _least_bytes(outline: Outline, machine: Machine) -> int:
    return smallest_bytes(outline.footprint, machine.cores) + PROCESS_BYTES


def _given_bytes(config: RuntimeConfig, machine: Machine) -> int:
    return config.memory.ram.of(machine.total_bytes) if config.memory.ram is not None else machine.available_bytes


def _bound(config: RuntimeConfig, machine: Machine) -> str:
    return "are given" if config.memory.ram is not None else f"are available ({machine.limited_by})"
