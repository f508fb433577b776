"""How fast a GPU is expected to decode, from what its maker publishes: for a card that is not here, or not measured."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from moeinf.config import RuntimeConfig
from moeinf.engine.memory.device_plan import DevicePlan, plan_device_memory
from moeinf.engine.speed.rates import CardRates
from moeinf.engine.speed.speed import Step, device_decode_step
from moeinf.engine.stored.outline import Outline
from moeinf.errors import UsageError
from moeinf.hardware import Machine
from moeinf.types import MoeShape

# What an H100 reached of its published rates (docs/lab/benchmarks.md): 2,984 of 3,350 GB/s, and 50 of 63 over the link.
MEMORY_SHARE: Final = 0.89
LINK_SHARE: Final = 0.8
CONTEXT_BYTES: Final = 1 << 30  # what the driver's context and torch's libraries take of a card, and a little of others


class Card(NamedTuple):
    name: str  # as the driver has it, without the maker's name in front
    memory_gib: int
    memory_gb_per_s: int
    lanes: int  # of PCIe
    generation: int  # of PCIe

    @property
    def rates(self) -> CardRates:
        """What is expected of it, in bytes a second: a lane of PCIe 3 carries 0.985 GB/s, of each later one twice."""
        link = 0.985e9 * 2 ** (self.generation - 3) * self.lanes
        return CardRates(MEMORY_SHARE * 1e9 * self.memory_gb_per_s, LINK_SHARE * link)


# Rates that the makers publish, written down from memory and not compared with the data sheets since. Of a name with
# several memories the smaller is first.
CARDS: Final = (
    Card("RTX 3060", 12, 360, 16, 4),
    Card("RTX 3060 Ti", 8, 448, 16, 4),
    Card("RTX 3070", 8, 448, 16, 4),
    Card("RTX 3080", 10, 760, 16, 4),
    Card("RTX 3080 Ti", 12, 912, 16, 4),
    Card("RTX 3090", 24, 936, 16, 4),
    Card("RTX 3090 Ti", 24, 1008, 16, 4),
    Card("RTX 4060", 8, 272, 8, 4),
    Card("RTX 4060 Ti", 8, 288, 8, 4),
    Card("RTX 4060 Ti", 16, 288, 8, 4),
    Card("RTX 4070", 12, 504, 16, 4),
    Card("RTX 4070 Ti", 12, 504, 16, 4),
    Card("RTX 4070 Ti SUPER", 16, 672, 16, 4),
    Card("RTX 4080", 16, 717, 16, 4),
    Card("RTX 4090", 24, 1008, 16, 4),
    Card("RTX 5060", 8, 448, 8, 5),
    Card("RTX 5060 Ti", 8, 448, 8, 5),
    Card("RTX 5060 Ti", 16, 448, 8, 5),
    Card("RTX 5070", 12, 672, 16, 5),
    Card("RTX 5070 Ti", 16, 896, 16, 5),
    Card("RTX 5080", 16, 960, 16, 5),
    Card("RTX 5090", 32, 1792, 16, 5),
    Card("RTX A6000", 48, 768, 16, 4),
    Card("RTX 6000 Ada", 48, 960, 16, 4),
    Card("RTX PRO 6000", 96, 1792, 16, 5),
    Card("A10", 24, 600, 16, 4),
    Card("L4", 24, 300, 16, 4),
    Card("L40S", 48, 864, 16, 4),
    Card("A100", 40, 1555, 16, 4),
    Card("A100", 80, 1935, 16, 4),
    Card("H100", 80, 3350, 16, 5),
    Card("H100 PCIe", 80, 2039, 16, 5),
    Card("H100 NVL", 94, 3938, 16, 5),
    Card("H200", 141, 4800, 16, 5),
)

_SLOWER: Final = {"laptop", "mobile", "max", "q"}  # cards with another's name


@dataclass(frozen=True, slots=True)
class CardForecast:
    """Of a run on a card, behind which the host's memory holds every expert."""

    card: Card
    plan: DevicePlan
    decode: Step | None  # None: the host has no room for all experts, and how fast the rest is read is not foretold

    def resident_share(self, moe: MoeShape) -> float:
        return self.plan.num_slots / moe.total_experts


def card_named(name: str, memory_bytes: int = 0) -> Card:
    """The card that a user or a driver means; memory_bytes tells cards of one name apart. Raises UsageError."""
    wanted = re.findall(r"\w+", name.lower())
    alike = [card for card in CARDS if _within(re.findall(r"\w+", card.name.lower()), wanted)]
    longest = max((len(card.name) for card in alike), default=0)
    found = [card for card in alike if len(card.name) == longest and not _SLOWER & set(wanted)]
    asked = re.search(r"(\d+) ?g(?:i?b)?\b", name.lower())
    gib = float(asked[1]) if asked else memory_bytes / 2**30
    if not found:
        known = ", ".join(dict.fromkeys(card.name for card in CARDS))
        raise UsageError(f"no rates of a card {name!r} are known here; known: {known}")
    return min(found, key=lambda card: abs(card.memory_gib - gib) if gib else card.memory_gib)


def _within(words: list[str], text: list[str]) -> bool:
    return any(text[at : at + len(words)] == words for at in range(len(text)))


def card_forecast(outline: Outline, config: RuntimeConfig, machine: Machine, card: Card) -> CardForecast:
    """Raises as plan_device_memory, where the card has no room for what must be on it."""
    total = card.memory_gib << 30
    plan = plan_device_memory(outline.device_footprint, config, machine, total - CONTEXT_BYTES, total)
    moe = outline.manifest.moe
    complete = moe.total_experts in (plan.num_slots, plan.host_slots)
    return CardForecast(card, plan, device_decode_step(plan, moe, card.rates) if complete else None)
