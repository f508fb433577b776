"""What was simulated, as a picture: one panel a trace, one line a policy and predictor."""

from __future__ import annotations

from pathlib import Path

from moeinf.bench.simulation.simulate import Cell, Simulated
from moeinf.bench.simulation.simulation_plan import Plan
from moeinf.bench.simulation.simulation_report import label_of
from moeinf.terminal.traces.picture import save_picture


def write_plot(simulated: list[Simulated], plan: Plan, path: Path) -> None:
    """Hit rates without a timing, else times a token, by the size of the cache. Raises UsageError as save_picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5 * len(simulated), 5), layout="constrained")
    panels = figure.subplots(1, len(simulated), squeeze=False)[0]
    for panel, each in zip(panels, simulated, strict=True):
        lines: dict[str, list[Cell]] = {}
        for cell in each.cells:
            lines.setdefault(label_of(cell), []).append(cell)
        for label, cells in lines.items():
            heights = [cell.main.token_s * 1e3 if plan.timed else 100 * cell.hit_rate for cell in cells]
            panel.plot([cell.share for cell in cells], heights, marker="o", label=label)
        panel.set_title(each.trace.name)
        panel.set_xlabel("experts resident, %")
        panel.set_ylabel("ms a token" if plan.timed else "hits, %")
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small")
    save_picture(figure, path)
