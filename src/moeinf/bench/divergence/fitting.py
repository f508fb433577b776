"""Chooses the format of each part of a model so that it has a size and diverges least, and stores it so."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from moeinf.bench.divergence.sensitivity import Part, ends_of, measured, parts_of
from moeinf.config import RuntimeConfig
from moeinf.config.compare_options import CompareOptions
from moeinf.engine.reporting import Reporting
from moeinf.errors import UsageError
from moeinf.pull.events import PullProgress
from moeinf.pull.importance import Place
from moeinf.pull.refit import ALIKE, Refit, Weighing, check_whole, recipe_of, refit, store_bytes
from moeinf.store.files import errors_named, make_folders, publish
from moeinf.store.library import StoredModel
from moeinf.store.processes.partials import partial_folder, pull_lock
from moeinf.store.quantisation import FormatPlan, Quantisation
from moeinf.text.quantities import size_text
from moeinf.types import Format

Chosen = dict[str, Format]  # by the name of a part


def fitted(
    stored: StoredModel,
    most_bytes: int,
    name: str,
    text: str,
    options: CompareOptions,
    config: RuntimeConfig,
    reporting: Reporting,
    progress: PullProgress,
    weighing: Weighing = ALIKE,
) -> StoredModel:
    """Publishes the model under another name, with at most so many bytes of weights and the least divergence.

    Raises UsageError for a model that is quantised already, and where its smallest formats are too large.
    """
    check_whole(stored.name, stored.manifest)
    parts, ends = parts_of(stored, weighing.importance), ends_of(stored)
    least = store_bytes(stored, _recipe(parts, {part.name: part.formats[0] for part in parts}, ends))
    if least > most_bytes:
        bits = 8 * least / stored.manifest.info.num_params
        raise UsageError(
            f"{stored.name} cannot be stored in {size_text(most_bytes)}: its smallest formats take {size_text(least)}, "
            f"{bits:.2f} bits a weight; give that much, or take a smaller model"
        )
    losses = measured(stored, parts, text, options, config, reporting, weighing)
    costs = [_costs(part, loss) for part, loss in zip(parts, losses, strict=True)]
    formats, room = chosen(parts, costs, most_bytes), most_bytes
    while (num_bytes := store_bytes(stored, _recipe(parts, formats, ends))) > most_bytes:  # headers and borders, too
        room -= num_bytes - most_bytes
        formats = chosen(parts, costs, room)

    def size_with(tried: Chosen) -> int:
        return store_bytes(stored, _recipe(parts, tried, ends))

    formats = filled(parts, costs, formats, most_bytes, size_with)
    num_bytes = size_with(formats)
    told = (*_lines(stored, parts, formats, costs, num_bytes, options), *weighing.told)
    return _stored_as(Refit(stored, _recipe(parts, formats, ends), name, told, weighing), reporting, progress)


def weighed(
    stored: StoredModel,
    asked: Quantisation,
    name: str,
    reporting: Reporting,
    progress: PullProgress,
    weighing: Weighing,
) -> StoredModel:
    """Publishes the model under another name in the formats that are asked for. Raises UsageError as `fitted`."""
    check_whole(stored.name, stored.manifest)
    formats = FormatPlan()
    recipe = recipe_of(stored, asked, formats)
    told = (*formats.fallbacks, *weighing.told)
    return _stored_as(Refit(stored, recipe, name, told, weighing), reporting, progress)


def _stored_as(wanted: Refit, reporting: Reporting, progress: PullProgress) -> StoredModel:
    """Layers that an interrupted call has made stay, and are gone on from: to correct them takes long."""
    for line in wanted.told:
        reporting.notify(line)
    folder = partial_folder(wanted.stored.home, f"{wanted.stored.id} fitted as {wanted.name}")
    record, made_of = folder / "made-of", f"{wanted.text}{wanted.weighing.sha256}".encode()
    with pull_lock(folder, wanted.name, progress.note):
        with errors_named(folder):
            if not record.exists() or record.read_bytes() != made_of:
                shutil.rmtree(folder, ignore_errors=True)
                make_folders(folder)
                publish(record, made_of)
        made = refit(wanted, folder / "model", progress)
        shutil.rmtree(folder, ignore_errors=True)
        return made


def chosen(parts: Sequence[Part], costs: Sequence[Mapping[Format, float]], most_bytes: int) -> Chosen:
    """The format of each part, for the least sum of costs within so many bytes of all parts.

    From the smallest formats on, the step is taken that saves most for each byte, of those that there is room for:
    steps are those between formats with which no mixture of two others can compete.
    """
    found = {part.name: part.formats[0] for part in parts}
    left = most_bytes - sum(part.num_bytes[part.formats[0]] for part in parts)
    steps: list[tuple[float, int, int, Format, Format]] = []
    for number, (part, cost) in enumerate(zip(parts, costs, strict=True)):
        at = part.formats[0]
        while (step := _next(part, cost, at)) is not None:
            steps.append((-step[0], number, len(steps), at, step[1]))
            at = step[1]
    for _, number, _, at, to in sorted(steps):
        part = parts[number]
        more = part.num_bytes[to] - part.num_bytes[at]
        if found[part.name] == at and more <= left:
            found[part.name] = to
            left -= more
    return found


def filled(
    parts: Sequence[Part],
    costs: Sequence[Mapping[Format, float]],
    formats: Chosen,
    most_bytes: int,
    size_with: Callable[[Chosen], int],
) -> Chosen:
    """The choice with further steps, of which each saves most for its bytes, as long as there is room.

    size_with: what a choice takes as it is stored, which is not what its parts sum up to: a block of an expert ends at
    a multiple of the disk's, so that small experts may have more bits for nothing.
    """
    found, size = dict(formats), size_with(formats)
    while True:
        steps = []
        for part, cost in zip(parts, costs, strict=True):
            for to in part.formats:
                saved = cost[found[part.name]] - cost[to]
                if saved > 0 and (taken := size_with({**found, part.name: to})) <= most_bytes:
                    steps.append((saved / max(1, taken - size), part.name, to, taken))
        if not steps:
            return found
        _, name, to, size = max(steps, key=lambda step: step[0])
        found[name] = to


def _next(part: Part, cost: Mapping[Format, float], at: Format) -> tuple[float, Format] | None:
    """The larger format that saves most for each byte against `at`, and how much; None where none saves anything."""
    gains = [
        ((cost[at] - cost[to]) / (part.num_bytes[to] - part.num_bytes[at]), to)
        for to in part.formats
        if part.num_bytes[to] > part.num_bytes[at] and cost[to] < cost[at]
    ]
    return max(gains, key=lambda each: (each[0], part.num_bytes[each[1]])) if gains else None


def _costs(part: Part, loss: float) -> dict[Format, float]:
    """The divergence that each format costs. loss: that of the one which was tried."""
    tried = part.errors[part.tried]
    return {format: loss * part.errors[format] / tried if tried else 0.0 for format in part.formats}


def _recipe(parts: Sequence[Part], formats: Chosen, ends: Mapping[Place, Format]) -> dict[Place, Format]:
    return dict(ends) | {place: formats[part.name] for part in parts for place in part.places}


def _lines(
    stored: StoredModel,
    parts: Sequence[Part],
    formats: Chosen,
    costs: Sequence[Mapping[Format, float]],
    num_bytes: int,
    options: CompareOptions,
) -> list[str]:
    """What was chosen, and by what, for `pull` and `show`."""
    bits = 8 * num_bytes / stored.manifest.info.num_params
    cost = sum(cost[formats[part.name]] for part, cost in zip(parts, costs, strict=True))
    where = options.text or "the text that comes along"
    by_part: defaultdict[str, list[str]] = defaultdict(list)
    for part in parts:
        layers, _, word = part.name.rpartition(": ")
        by_part[f"{word} in {formats[part.name]}"].append(layers.partition(" ")[2])
    kinds = [
        f"{kind} (layers {', '.join(layers)})" if any(layers) else kind for kind, layers in sorted(by_part.items())
    ]
    return [
        f"{size_text(num_bytes)} of weights, {bits:.2f} bits each, chosen by the divergence that each part alone has "
        f"on {where}; {cost:.4f} nats between them, as far as they add up",
        *kinds,
    ]
