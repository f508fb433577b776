"""`moeinf trace`: one short function per verb. Heavy imports are inside the verbs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from moeinf.errors import UsageError

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A folder that --trace or `trace import` wrote.")]
MaxTokens = Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the first N tokens.")]

app = typer.Typer(
    name="trace",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Look at recorded routing, import it, or cluster it.",
)


@app.callback(invoke_without_command=True)
def top(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


@app.command()
def show(
    folder: Folder,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a picture as well: .svg or .png.")] = None,
    max_tokens: MaxTokens = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show which experts are used, how evenly, how soon again, and how alike requests are."""
    from moeinf.terminal.traces.picture import check_picture
    from moeinf.terminal.traces.trace_plot import draw
    from moeinf.terminal.traces.trace_report import fitted, show_json, show_lines
    from moeinf.traces.trace import load_trace

    if plot is not None:
        check_picture(plot)
    trace = load_trace(folder, max_tokens)
    if plot is not None:
        draw(trace, plot)
    if json:
        print(show_json(trace))
        return
    columns, coloured = _terminal()
    lines = show_lines(trace, columns, coloured=coloured)
    print("\n".join(fitted(lines, columns) if sys.stdout.isatty() else lines))


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A file or folder of another recorder.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    form: Annotated[
        str,
        typer.Option(
            "--format", metavar="FORM", help="auto, npz, moe-beyond, fingerprinting, big-moe, jsonl, parquet."
        ),
    ] = "auto",
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help="Of which model it is. [default: as the source says]")
    ] = "",
    num_experts: Annotated[
        int | None,
        typer.Option("--num-experts", metavar="N", min=1, help="Experts of a layer, where the source does not say it."),
    ] = None,
) -> None:
    """Take over a trace of another recorder."""
    from moeinf.terminal.traces.trace_report import head_line
    from moeinf.traces.importing.importer import import_trace
    from moeinf.traces.trace import load_trace

    import_trace(source, folder, form, model, num_experts or 0)
    print(head_line(load_trace(folder)))


@app.command()
def cluster(
    folder: Folder,
    num_clusters: Annotated[int, typer.Option("-k", metavar="N", min=1, help="How many clusters.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="A new file, for the matrices that are kept.")
    ],
    max_tokens: MaxTokens = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the first centroids. [default: 0]")] = 0,
) -> None:
    """Cluster requests by k-means, and keep one of each cluster.

    The one that is kept is the activation matrix nearest to the centroid. The file is an activation collection as a
    model's eamc.npz, made as the first version of the paper made it.
    """
    from moeinf.store.files import errors_named, publish
    from moeinf.terminal.traces.trace_report import cluster_lines
    from moeinf.traces.clusters import cluster_requests
    from moeinf.traces.trace import load_trace

    if output.exists():
        raise UsageError(f"{output} is there already; name a new file")
    clusters, collection = cluster_requests(load_trace(folder, max_tokens), num_clusters, seed)
    with errors_named(output, UsageError):
        publish(output, collection.dumps())
    print("\n".join(cluster_lines(clusters)))


def _terminal() -> tuple[int, bool]:
    """How many columns there are for a picture, and whether they have colours."""
    from shutil import get_terminal_size

    from moeinf.terminal.screen import has_colours

    tty = sys.stdout.isatty()
    return (get_terminal_size().columns if tty else 133), tty and has_colours()
