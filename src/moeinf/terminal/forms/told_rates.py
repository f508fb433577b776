"""The rates of this machine for a verb, which tells what is being measured."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from moeinf.config import RuntimeConfig
from moeinf.config.environment import store_home
from moeinf.engine.speed.rates import Conditions, Disks, Kind, Rates
from moeinf.store.spread.copy_list import CopyList
from moeinf.terminal.progress import StatusLine
from moeinf.terminal.screen import can_draw
from moeinf.terminal.user_notes import say


def told_rates(
    config: RuntimeConfig,
    kinds: Sequence[Kind],
    disks: Disks | None = None,
    *,
    again: bool = False,
    doubted: list[Conditions] | None = None,
) -> Rates:
    """disks: those that are read beside the store's; None: those of all folders that the store knows are told of.

    doubted: of a verb that asks several times, what was said to be too low, so that it is said once.
    """
    from moeinf.forecast.known import known_rates  # loads all that a measurement needs

    line, said = StatusLine(sys.stderr, enabled=can_draw(sys.stderr)), set[str]()

    def report(text: str) -> None:
        line.show(text)
        note = "note: measuring this machine, which takes a quarter of a minute and is kept for the next time"
        if not sys.stderr.isatty() and note not in said:
            said.add(note)
            say(note)

    try:
        folders = _folders_there() if disks is None else disks.folders
        rates = known_rates(store_home(), config, report, again=again, kinds=kinds, folders=folders)
    finally:
        line.clear()
    if (then := rates.conditions).was_busy and (doubted is None or not doubted):
        if doubted is not None:
            doubted.append(then)
        say(
            f"note: other programs computed when this machine was measured (load {then.load:g}, {then.threads} threads "
            "here), so that the rates may be too low; `moeinf doctor --again` measures it once they have ended"
        )
    return rates if disks is None else rates.with_disks(disks)


def _folders_there() -> list[str]:
    folders = dict.fromkeys(copy.folder for copy in CopyList(store_home()).all())
    return [folder for folder in folders if Path(folder).is_dir()]
