"""What `tune` tells while it works, and in the end."""

from __future__ import annotations

from collections.abc import Callable

from moeinf.runtime.policy.tuned import LEAST_GAIN, TunedNetwork
from moeinf.terminal.progress import StatusLine


def progress_of(line: StatusLine) -> Callable[[str, int, int], None]:
    """Takes what is done, so far and in all."""
    return lambda what, done, whole: line.show(f"{what} {100 * done // whole} %")


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
