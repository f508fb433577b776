"""What `list` tells about stored models and interrupted pulls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from moeinf.errors import StoreError
from moeinf.store.formats import expert_formats
from moeinf.store.quantisation import KEEP
from moeinf.store.spread.whole import copies_of
from moeinf.terminal.screen import table
from moeinf.text.quantities import ago_text, size_text

if TYPE_CHECKING:
    from moeinf.references.foreign.foreign_model import ForeignModel
    from moeinf.store.library import StoredModel
    from moeinf.store.processes.partials import PartialPull
    from moeinf.store.spread.copy_list import Copy


_MOST_REVISION = 20  # letters of a revision, as of a commit's 40 digits


def list_lines(models: list[StoredModel], now: datetime | None = None) -> list[str]:
    """A table with a header. It has revisions, and folders on other disks, where there are any."""
    now = now or datetime.now(timezone.utc)
    rows: list[tuple[str, ...]] = [
        ("NAME", "ID", "SIZE", "FORMAT", "REVISION", "MODIFIED", "ALSO IN"),
        *(_list_row(model, now) for model in models),
    ]
    if not any(row[-1] for row in rows[1:]):
        rows = [row[:-1] for row in rows]
    if not any(model.revision for model in models):
        rows = [(*row[:4], *row[5:]) for row in rows]
    return table(rows)


def _list_row(model: StoredModel, now: datetime) -> tuple[str, ...]:
    return (
        model.name,
        model.own_id[:12],
        size_text(model.size_bytes),
        _format_word(model),
        model.revision[:_MOST_REVISION],
        ago_text(_aware(model.modified), now),
        ", ".join(f"{copy.folder} (divided)" if copy.divided else copy.folder for copy in _copies(model)),
    )


def _copies(model: StoredModel) -> list[Copy]:
    """None where the list of them is damaged, as `run` and `doctor` say."""
    try:
        return copies_of(model)
    except StoreError:
        return []


def _format_word(model: StoredModel) -> str:
    """`bf16`, or what the model was quantised to; `?` for one whose manifest is damaged.

    Where experts could not be stored as was asked for, what they are in.
    """
    try:
        manifest = model.manifest
    except StoreError:
        return "?"
    if manifest.formats.asked == KEEP or manifest.formats.fallbacks:
        return expert_formats(manifest)
    return manifest.formats.asked.tag


def foreign_lines(models: Sequence[ForeignModel]) -> list[str]:
    """Models that other programs have on this disk, below the list of models."""
    if not models:
        return []
    rows = [("NAME", "OWNER", "SIZE", "FORMAT")]
    rows += [(each.own_name, each.owner, size_text(each.num_bytes), each.tag) for each in models if not each.fault]
    return [
        "",
        "on this disk already, of other programs:",
        *table(rows),
        *(f"note: {each.owner}'s {each.name} cannot be used: {each.fault}" for each in models if each.fault),
        "`moeinf run NAME` uses one where it lies, `moeinf run OWNER:NAME` one of several",
    ]


def list_json(
    models: Sequence[StoredModel], partials: Sequence[PartialPull] = (), foreign: Sequence[ForeignModel] = ()
) -> str:
    """The models, then the pulls that have not ended, which alone have a field `running`, then those of other programs,
    which alone have an `owner`."""
    stored = [
        {
            "name": model.name,
            "id": model.own_id[:12],
            "revision": model.revision,
            "size_bytes": model.size_bytes,
            "format": _format_word(model),
            "modified": _aware(model.modified).isoformat(),
            "also": [{"folder": copy.folder, "divided": copy.divided} for copy in _copies(model)],
        }
        for model in models
    ]
    pulls = [
        {
            "name": partial.name,
            "source": partial.asked.source.location if partial.asked else "",
            "size_bytes": partial.size_bytes,
            "running": partial.running,
        }
        for partial in partials
    ]
    others = [
        {
            "name": f"{model.owner}:{model.own_name}",
            "owner": model.owner,
            "called": model.name,
            "size_bytes": model.num_bytes,
            "format": model.tag,
            "path": str(model.path),
            "fault": model.fault,
        }
        for model in foreign
    ]
    return json.dumps([*stored, *pulls, *others], indent=2)


def partial_lines(partials: Sequence[PartialPull]) -> list[str]:
    """Pulls that have not ended, below the list of models."""
    return [_partial_line(partial) for partial in partials]


def _partial_line(partial: PartialPull) -> str:
    name, size = partial.name.removesuffix(":latest"), size_text(partial.size_bytes)
    source = f"    {partial.asked.source.location}" if partial.asked else ""
    if partial.running:
        return f"{partial.name}{source}    ({size}; being pulled)"
    on = f"`moeinf pull {name}` goes on, " if partial.asked else ""
    return f"{partial.name}{source}    ({size} of an interrupted pull; {on}`moeinf rm {name}` deletes it)"


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.astimezone()
