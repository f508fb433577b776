"""The kinds of steps that a campaign takes by turns, and how much of its time each has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.support.campaign.cables import cables
from tests.support.campaign.executions import covered
from tests.support.campaign.fuzzers import mutations
from tests.support.campaign.power import power_cuts
from tests.support.campaign.sessions import sessions
from tests.support.campaign.soak import server
from tests.support.campaign.step import Step
from tests.support.campaign.strangers import strangers
from tests.support.campaign.strikes import calls, kills, repeated_calls, swept_calls
from tests.support.campaign.world import worlds


@dataclass(frozen=True)
class Kind:
    step: Step
    weight: float  # of the campaign's time, beside the others


KINDS: Final = {
    "kills": Kind(kills, 4),
    "calls": Kind(calls, 3),
    "swept calls": Kind(swept_calls, 1),
    "repeated calls": Kind(repeated_calls, 1),
    "power cuts": Kind(power_cuts, 2),
    "worlds": Kind(worlds, 2),
    "sessions": Kind(sessions, 2),
    "mutations": Kind(mutations, 2),
    "executions": Kind(covered, 2),
    "servers": Kind(server, 2),
    "strangers": Kind(strangers, 1),
    "cables": Kind(cables, 1),
}
