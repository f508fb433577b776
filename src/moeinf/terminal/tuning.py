"""What `tune` tells while it works, and in the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from moeinf.runtime.policy import state_maps
from moeinf.runtime.policy.state_maps import StateMaps
from moeinf.runtime.policy.tuned import LEAST_GAIN, TunedNetwork
from moeinf.terminal.progress import StatusLine


def progress_of(line: StatusLine) -> Callable[[str, int, int], None]:
    """Takes what is done, so far and in all."""
    return lambda what, done, whole: line.show(f"{what} {100 * done // whole} %")


class Quality(Protocol):
    """See moeinf.bench.simulation.quality."""

    @property
    def recall(self) -> float: ...

    @property
    def precision(self) -> float: ...


def tuned_lines(name: str, network: TunedNetwork) -> list[str]:
    """What the network is worth, and whether it is used from now on."""
    gain = network.gain
    lines = [
        f"{network.num_parameters:,} parameters; hit rates on {gain.requests} later requests ({gain.tokens:,} tokens), "
        "which it did not see:",
        "resident   next-use      tuned     gain",
    ]
    for percent, default, tuned, points in zip(gain.percents, gain.default, gain.tuned, gain.points, strict=True):
        lines.append(f"{percent:6} %   {default:6.1f} %   {tuned:6.1f} %   {points:+6.1f}")
    if gain.better:
        lines.append(f"{name} uses it from now on; --policy next-use goes without it")
    else:
        lines.append(
            f"next-use stays the default of {name}: the network would have to gain {LEAST_GAIN} points on average, and "
            "to lose at no size; --policy tuned takes it all the same"
        )
    return lines


def map_lines(name: str, maps: StateMaps, recalls: Mapping[str, Sequence[Quality]]) -> list[str]:
    """What the maps are worth, and whether they are used from now on; recalls: of each predictor, the nearest first."""
    gain = maps.gain
    lines = [
        f"maps of states for prefetch, {maps.num_parameters:,} parameters; on {gain.requests} later requests "
        f"({gain.tokens:,} tokens), recall/precision in percent of the",
        f"{'':16} {'nearest layer':>15} {'one behind it':>15} {'two behind it':>15}",
    ]
    for predictor, found in recalls.items():
        cells = (f"{100 * each.recall:.1f}/{100 * each.precision:.1f}" for each in found[: state_maps.REACH])
        lines.append(f"{predictor:16} " + " ".join(f"{cell:>15}" for cell in cells))
    lines += [
        "tuned, early: in front of the attention of the nearest layer; all others after the layer below was routed",
        gain.text,
    ]
    if gain.better:
        return [*lines, f"{name} prefetches by {gain.predictor} from now on; --predictor look-ahead goes without it"]
    return [
        *lines,
        f"look-ahead stays the default of {name}: the maps would have to gain {100 * state_maps.LEAST_GAIN:g} % on "
        "average, to lose nowhere, and to be no slower on this machine; --predictor tuned takes them all the same",
    ]
