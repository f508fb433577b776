"""What each known model would be on this machine at 4 bits, by sizes that come with moeinf: nobody is asked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from moeinf.engine.speed.rates import Rates
from moeinf.forecast.hits import expected_hits
from moeinf.hardware import Machine
from moeinf.store.naming.catalogue import KnownModel, catalogue
from moeinf.types import MoeShape


@dataclass(frozen=True, slots=True)
class KnownSize:
    """Of a model with this config.json; see docs/generate_models.py."""

    architecture: str
    num_params: int
    active_params: int  # that one token uses
    store_bytes: int  # of all weights at 4 bits
    least_bytes: int  # of memory with which it runs
    dense_bytes: int
    expert_bytes: int
    num_layers: int  # with experts
    num_experts: int
    top_k: int

    def resident_share(self, machine: Machine) -> float | None:
        """Of the experts, in the memory that is available; None where the model does not run."""
        left = machine.available_bytes - self.least_bytes
        slots = max(0.0, left / self.expert_bytes)
        return min(1.0, slots / (self.num_layers * self.num_experts)) if left >= 0 else None

    def tokens_per_s(self, machine: Machine, rates: Rates) -> float:
        """Roughly: the weights of a token at the memory's rate, and what is missed at the disk's. 0 where nothing is
        known, or the model does not run."""
        share = self.resident_share(machine)
        if share is None or not rates.memory or not rates.disk:
            return 0.0
        moe = MoeShape(self.num_layers, self.num_experts, self.top_k)
        experts = self.num_layers * self.top_k * self.expert_bytes
        missed = expected_hits(moe, self.architecture, share * moe.total_experts, {}, self.expert_bytes).read_share
        readings = [reading.share for kind in rates.reading.values() for reading in kind.values()]
        product = sum(readings) / len(readings) if readings else 1.0
        seconds = (self.dense_bytes + experts) / (rates.memory * product) + missed * experts / max(rates.disk.values())
        return 1 / seconds


def size_of(model: KnownModel) -> KnownSize | None:
    """None where no published config.json of it is known."""
    return _sizes().get(model.like)


def nearest_mixture(num_bytes: int) -> tuple[KnownModel, KnownSize] | None:
    """The known model with experts that is about as large at 4 bits."""
    known = ((model, size_of(model)) for model in catalogue().values())
    mixtures = [(model, size) for model, size in known if size is not None and size.num_experts > 1]
    return min(mixtures, key=lambda each: abs(math.log(each[1].store_bytes / num_bytes)), default=None)


@cache
def _sizes() -> Mapping[str, KnownSize]:
    text = resources.files("moeinf").joinpath("data/model_sizes.json").read_text(encoding="utf-8")
    return {name: KnownSize(**size) for name, size in json.loads(text).items()}
