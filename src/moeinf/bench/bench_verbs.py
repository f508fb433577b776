"""The verbs that measure: bench, compare, tune and simulate. Heavy imports are inside the verbs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from moeinf.config import RuntimeConfig
from moeinf.config.bench_options import BenchOptions
from moeinf.config.compare_options import CompareOptions
from moeinf.config.guess_options import GuessOptions
from moeinf.config.option import options as all_options
from moeinf.config.simulate_options import SimulateOptions
from moeinf.terminal.arguments.flags import with_flags
from moeinf.terminal.arguments.named import AsJson, ModelName, Quiet, StoredName
from moeinf.terminal.arguments.shell_completion import model_names
from moeinf.terminal.launched import with_launched
from moeinf.terminal.screen import can_draw, print_fitted, print_harmless

# What a comparison is not told: it computes on the CPU, and answers nothing.
_COMPARED = ("ram", "expert_cache", "kv_cache", "threads", "prefill_chunk", "also")
_NOT_COMPARED = tuple(each.name for each in all_options(RuntimeConfig) if each.name not in _COMPARED)


@with_flags(without=("num_beams", "policy", "predictor"))  # what is measured is fed token by token
def bench(
    model: ModelName, *, options: BenchOptions, quiet: Quiet = False, guess: GuessOptions, config: RuntimeConfig
) -> None:
    """Time a model on real text, with a cold and a warm cache."""
    from moeinf.bench.bench_plot import draw, runs_of
    from moeinf.bench.bench_report import check_form, format_rows, profile_text
    from moeinf.bench.comparison import compare, comparison_text, configurations
    from moeinf.bench.comparison_view import comparison_view
    from moeinf.bench.live_bench import Workload, run_bench
    from moeinf.engine.stored.preset import preset_of
    from moeinf.terminal.session_opening import ensure_stored
    from moeinf.terminal.traces.picture import check_new_picture
    from moeinf.terminal.user_notes import say

    check_form(options.output)
    if options.plot is not None:
        check_new_picture(Path(options.plot))
    report: Callable[[str], None] = (lambda line: None) if quiet else say
    workload = Workload.of(options, guess)
    workload.text()  # refuses a file that cannot be read before a model is pulled
    launched = with_launched(config, model, quiet=quiet)
    configs = configurations(launched, options.policies, options.predictors, options.admission)
    stored = ensure_stored(model, quiet=quiet)
    configs = [preset_of(stored).configured(each) for each in configs]
    as_table = options.output == "table"
    if len(configs) == 1:
        rows = run_bench(stored, configs[0], workload, report)
        print(format_rows(rows, options.output))
    else:
        with comparison_view(configs, report, table=as_table and not quiet) as view:
            rows = compare(stored, configs, workload, view)
        print(comparison_text(rows) if as_table else format_rows(rows, options.output))
    if options.plot is not None:
        draw(
            runs_of(rows),
            f"{model}: decoding {options.num_decode} tokens behind {options.num_prompt}",
            Path(options.plot),
        )
    if options.profile:
        readable = options.output in ("table", "md")
        print(("\n" if readable else "") + profile_text(rows), file=sys.stdout if readable else sys.stderr)


@with_flags(without=_NOT_COMPARED)
def compare(
    reference: ModelName,
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="What is compared with it.", autocompletion=model_names)
    ],
    *,
    options: CompareOptions,
    json: AsJson = False,
    quiet: Quiet = False,
    config: RuntimeConfig,
) -> None:
    """Say how far models are from another, on a text.

    They may be what was quantised from a checkpoint, beside it. Each reads the same text, one after the other, on the
    CPU: perplexity, the KL divergence of the distributions of each next token, how often the likeliest is the same, and
    how far states are off behind each layer. `show` tells afterwards what was found.
    """
    from moeinf.bench.divergence.compare import compare as compared
    from moeinf.bench.divergence.compare_report import comparison_json, comparison_lines, record
    from moeinf.config.user_text import text_of
    from moeinf.engine.reporting import Reporting
    from moeinf.terminal.progress import LoadBar, StatusLine
    from moeinf.terminal.session_opening import ensure_stored
    from moeinf.terminal.user_notes import say

    text = text_of("--text", options.text)  # is read before a model is pulled
    first, *others = [ensure_stored(name, quiet=quiet) for name in (reference, *models)]
    line = StatusLine(sys.stderr, enabled=can_draw(sys.stderr) and not quiet)
    reporting = Reporting(say, progress=LoadBar(line, "loading"), step=line.show)
    try:
        found = compared(first, others, text, options, config, reporting)
    finally:
        line.clear()
    record(found, options)
    if json:
        print(comparison_json(found, options.text or ""))
    else:
        print_fitted("\n".join(comparison_lines(found, options.text or "")))


def tune(
    model: StoredName,
    trace: Annotated[
        list[Path], typer.Option(metavar="DIR", help="Recorded routing of the model, the oldest first; repeatable.")
    ],
    rounds: Annotated[
        int, typer.Option(metavar="N", min=1, max=100, help="How often training goes through the earlier requests.")
    ] = 3,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Where what is drawn begins.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Learn from traces what to evict.

    The earlier requests train a network that decides what is evicted, and the later ones measure it. Where it is better
    than the default, it is used from then on.
    """
    from moeinf.bench.tuning.tune import Course, requests_of, require_torch
    from moeinf.bench.tuning.tune import tune as trained
    from moeinf.engine.stored.tuned_file import check_writable, save_tuned
    from moeinf.terminal.progress import StatusLine
    from moeinf.terminal.stored.find_stored import find_stored
    from moeinf.terminal.tuning import progress_of, tuned_lines

    require_torch()
    stored = find_stored(model)
    check_writable(stored)
    requests = requests_of(trace, stored.name, stored.id, stored.manifest.moe)
    line = StatusLine(sys.stderr, enabled=can_draw(sys.stderr) and not quiet)
    network = trained(requests, stored.id, Course(rounds, seed), progress_of(line))
    save_tuned(stored, network)
    line.clear()
    print("\n".join(tuned_lines(stored.name, network)))


@with_flags()
def simulate(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Folders of recorded routing.")],
    json: AsJson = False,
    *,
    options: SimulateOptions,
) -> None:
    """Replay recorded routing through policies and predictors.

    Prints hit rates; with --link, --compute and --expert-bytes the times of a simulated machine. docs/lab/policies.md
    has the formulas.
    """
    from moeinf.bench.simulation.simulate import simulate as simulated_of
    from moeinf.bench.simulation.simulation_plan import plan_of
    from moeinf.bench.simulation.simulation_plot import write_plot
    from moeinf.bench.simulation.simulation_report import as_json, tables
    from moeinf.terminal.progress import StatusLine

    plan = plan_of(options)
    status = StatusLine(sys.stderr, enabled=can_draw(sys.stderr))
    simulated = simulated_of(traces, plan, status.show)
    status.clear()
    if options.plot is not None:
        write_plot(simulated, plan, Path(options.plot))
    print_harmless(as_json(simulated, plan) if json else "\n".join(tables(simulated, plan)))
