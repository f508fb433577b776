"""A trace's activation matrix and figures as a picture, by matplotlib."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from moeinf.terminal.traces.heat_map import relative_use
from moeinf.terminal.traces.picture import check_picture, save_picture
from moeinf.traces.statistics import DISTANCES, WINDOWS, activations, statistics_of
from moeinf.traces.trace import Trace


def draw(trace: Trace, path: Path) -> None:
    """Writes the picture; raises UsageError as check_picture does, and where the file cannot be written."""
    check_picture(path)
    from matplotlib.figure import Figure

    stats, shape = statistics_of(trace), trace.shape
    figure: Any = Figure(figsize=(11, 8), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(3, 2))
    heat, (left, middle, right) = above.subplots(), below.subplots(1, 3)
    shares = relative_use(activations(trace), shape)
    shares[shares == 0] = np.nan
    image = heat.imshow(np.log2(shares), aspect="auto", interpolation="nearest", cmap="viridis", vmin=-4, vmax=4)
    heat.set(xlabel="expert", ylabel="layer", title=f"{trace.model or trace.name}: how often each expert is used")
    above.colorbar(image, ax=heat, label="log2 of times an even share")
    left.bar(range(shape.num_layers), stats.entropy)
    left.axhline(math.log2(shape.num_experts), color="grey", linestyle="--")
    left.set(xlabel="layer", ylabel="bits", title="entropy (dashed: even use)")
    known = [(window, 100 * share) for window, share in zip(WINDOWS, stats.working_set, strict=True) if share]
    middle.plot(*zip(*known, strict=True), marker="o")
    middle.set(xscale="log", xlabel="tokens in a row", ylabel="% of all experts", title="working set", ylim=(0, 100))
    right.plot(DISTANCES, [100 * share for share in stats.reuse.within], marker="o")
    right.set(xscale="log", xlabel="tokens since its last use", ylabel="% of activations", title="reuse", ylim=(0, 100))
    save_picture(figure, path)
