"""The command line: one short function per verb, which parses, calls and prints. Heavy imports are inside the verbs."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeinf import __version__
from moeinf.bench.forecast.verbs import doctor, fit, planned_text, stored_forecast
from moeinf.config import RuntimeConfig
from moeinf.config.environment import api_key, debug_wanted, server_address, store_home, unknown_variables
from moeinf.config.guess_options import GuessOptions
from moeinf.config.option import option_of
from moeinf.config.pull_options import PullOptions
from moeinf.config.server_options import ServerOptions, keys_of
from moeinf.config.simulate_options import SimulateOptions
from moeinf.errors import ModelNotFoundError, MoeinfError, OutputError, UsageError
from moeinf.sampling.params import SamplingParams
from moeinf.terminal.arguments.chat_options import ChatOptions
from moeinf.terminal.arguments.completion import model_names, stored_names
from moeinf.terminal.arguments.flags import SamplingOptions, with_flags
from moeinf.terminal.arguments.wrong_use import usage_text, with_think
from moeinf.terminal.streams import drop_output, open_streams
from moeinf.terminal.traces.verbs import app as trace_app

if TYPE_CHECKING:
    from moeinf.store.library import StoredModel

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A stored model, org/repo[:GGUF tag][@rev], a checkpoint's folder, or a GGUF file.",
        autocompletion=model_names,
    ),
]
StoredName = Annotated[
    str, typer.Argument(metavar="MODEL", help="A stored model, or a GGUF file.", autocompletion=stored_names)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress and no line about memory.")]
ServerHost = Annotated[
    str | None,
    typer.Option(
        "--host", metavar="ADDRESS", help="Where the server listens. [default: MOEINF_HOST, else this machine]"
    ),
]
Quant = Annotated[str | None, typer.Option(metavar="FORMAT", help=option_of(PullOptions, "quant").help)]

app = typer.Typer(
    name="moeinf",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Run Mixture-of-Experts language models that do not fit in memory.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"moeinf version is {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def top(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", "-v", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere on the line.")] = False,
) -> None:
    for line in unknown_variables(RuntimeConfig, SamplingParams, ServerOptions):
        print(f"note: {line}", file=sys.stderr)
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


@app.command()
@with_flags()
def run(
    model: ModelName,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROMPT", help="What to answer; without one, a chat. Piped standard input comes before it."
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="PATH", help="Read the prompt from a file.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt as it is, without a chat template.")] = False,
    json: AsJson = False,
    plan: Annotated[bool, typer.Option("--plan", help="Say what it would take, and how fast it would be.")] = False,
    *,
    options: ChatOptions,
    sampling: SamplingOptions,
    config: RuntimeConfig,
    quant: Quant = None,
) -> None:
    """Answer a prompt, or chat. A model that is not stored yet is pulled first.

    Where `moeinf serve` has the model loaded on this machine, it answers, unless options of the model ask for what
    it cannot do.
    """
    from moeinf.engine.stored.preset import preset_of
    from moeinf.terminal.arguments.values import refuse_template_options
    from moeinf.terminal.conversation import Conversation
    from moeinf.terminal.notes import Notices
    from moeinf.terminal.oneshot import answer_once, prompt_text
    from moeinf.terminal.opening import check_template, ensure_stored, hold_chat, opened

    if plan:
        return print(planned_text(model, config, quant))
    text = prompt_text(prompt or [], file)
    if not text and (raw or json):
        raise UsageError(f"{'--raw' if raw else '--json'} needs a prompt; give one")
    if raw:
        refuse_template_options(options)
    stored = ensure_stored(model, quiet=options.quiet, quant=quant)
    check_template(stored, options)
    notices = Notices()
    with opened(stored, config, notices, quiet=options.quiet) as loaded:
        conversation = Conversation(loaded, sampling, options, notices=notices, preset=preset_of(stored))
        notices.show()
        if text is None:
            hold_chat(conversation, config)
        elif text:
            raise typer.Exit(answer_once(conversation, text, raw=raw, as_json=json))


@app.command()
@with_flags()
def pull(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="org/repo[:GGUF tag][@rev] on the Hub, a folder, a GGUF file, or demo[:chat].",
            autocompletion=model_names,
        ),
    ],
    *,
    options: PullOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be fetched, and fetch nothing.")] = False,
    quiet: Quiet = False,
) -> None:
    """Fetch and convert a model, or go on where that stopped. GGUF files are used as they are."""
    from moeinf.pull.pull import plan_pull
    from moeinf.pull.pull import pull as install
    from moeinf.terminal.pull_progress import PullDisplay, again_text, plan_lines

    try:
        with PullDisplay(sys.stderr, quiet=quiet) as display:
            plan = plan_pull(source, options, home=store_home(), progress=display) if dry_run else None
            if plan is None:
                install(source, options, home=store_home(), progress=display)
    except KeyboardInterrupt:
        print(f"interrupted; `{again_text(source, options)}` goes on where this stopped", file=sys.stderr)
        raise
    if plan is not None:
        print("\n".join(plan_lines(plan)))
    elif not quiet:
        print("success", file=sys.stderr)


@app.command("list")
def list_models(
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Only models whose names begin so.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="List interrupted pulls as well.")] = False,
    available: Annotated[bool, typer.Option("--available", help="List the names that pull knows instead.")] = False,
    json: AsJson = False,
) -> None:
    """List stored models, newest first (also: ls)."""
    if available:
        if everything:
            raise UsageError("only one of --all and --available at a time")
        return _list_available(prefix.lower(), as_json=json)
    from moeinf.store.library import Library
    from moeinf.terminal.listing import list_json, list_lines, partial_lines
    from moeinf.terminal.notes import say

    library = Library(store_home())
    models = [stored for stored in library.list() if stored.name.lower().startswith(prefix.lower())]
    partials = [
        each for each in (library.partials() if everything else ()) if each.name.lower().startswith(prefix.lower())
    ]
    print(list_json(models, partials) if json else "\n".join(list_lines(models)))
    for line in partial_lines(partials) if not json else ():
        _print(line)
    for fault in library.faults():
        say(f"note: {fault}")


app.command("ls", hidden=True)(list_models)


def _list_available(prefix: str, *, as_json: bool) -> None:
    from json import dumps

    from moeinf.pull.model_names import known_sources
    from moeinf.terminal.screen import table

    sources = known_sources(store_home())
    known = {name: source for name, source in sources.items() if name.startswith(prefix)}
    print(dumps(known, indent=2) if as_json else "\n".join(table([("NAME", "SOURCE"), *known.items()])))


@app.command()
def show(
    model: StoredName,
    licence: Annotated[bool, typer.Option("--license", help="Print only the licence.")] = False,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="Print only the checkpoint's sampling options.")
    ] = False,
    template: Annotated[bool, typer.Option("--template", help="Print only the chat template.")] = False,
    system: Annotated[bool, typer.Option("--system", help="Print only the system message of its own.")] = False,
    modelfile: Annotated[bool, typer.Option("--modelfile", help="Print only a Modelfile that makes it.")] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print what it takes here, and how fast it is, as `fit` does.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print metadata and tensors as well.")] = False,
    json: AsJson = False,
) -> None:
    """Show what a stored model is, and the memory it needs."""
    from moeinf.engine.stored.facts import licence_text, template_text
    from moeinf.engine.stored.preset import preset_of
    from moeinf.terminal.arguments.modelfile import own_modelfile
    from moeinf.terminal.show import parameters_text, show_json, show_lines

    flags = {
        "--license": licence,
        "--parameters": parameters,
        "--template": template,
        "--system": system,
        "--modelfile": modelfile,
        "--plan": plan,
        "--json": json,
        "--verbose": verbose,
    }
    chosen = [flag for flag, wanted in flags.items() if wanted]
    if len(chosen) > 1:
        raise UsageError(f"only one of {', '.join(flags)} at a time, not {' and '.join(chosen)}")
    stored = _stored(model)
    texts: dict[str, Callable[[StoredModel], str]] = {
        "--license": licence_text,
        "--template": template_text,
        "--system": lambda stored: preset_of(stored).system,
        "--modelfile": own_modelfile,
        "--plan": stored_forecast,
        "--json": show_json,
        "--parameters": parameters_text,
    }
    text = texts.get(chosen[0]) if chosen else None
    _print(text(stored) if text else "\n".join(show_lines(stored, verbose=verbose)))


@app.command()
def rm(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL", help="Models and interrupted pulls.", autocompletion=stored_names)
    ],
) -> None:
    """Delete models and interrupted pulls. Stops at the first that fails."""
    from moeinf.store.library import Library
    from moeinf.text.quantities import size_text

    for name in models:
        freed = Library(store_home()).remove(name)
        print(f"deleted '{name}' ({size_text(freed)} freed)")


@app.command()
def cp(
    source: StoredName, name: Annotated[str, typer.Argument(metavar="NAME", help="Another name for the model.")]
) -> None:
    """Give a model one more name. No weights are copied."""
    from moeinf.store.library import Library

    Library(store_home()).copy(source, name)
    print(f"copied '{source}' to '{name}'")


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the new model.")],
    file: Annotated[
        Path, typer.Option("--file", "-f", metavar="PATH", help="What it is made of. [default: Modelfile]")
    ] = Path("Modelfile"),
    quiet: Quiet = False,
) -> None:
    """Name a model with a system message and options of its own.

    A Modelfile has the lines FROM MODEL, PARAMETER NAME VALUE and SYSTEM TEXT, as in ollama; text within three double
    quotes may have many lines. The options are those of `run -o`, and those that say how a model is run, such as
    expert_cache. No weights are copied.
    """
    from moeinf.engine.stored.preset import preset_of
    from moeinf.pull.model_names import full_name
    from moeinf.store.library import Library
    from moeinf.terminal.arguments.modelfile import read_modelfile
    from moeinf.terminal.opening import ensure_stored

    full_name(name)
    asked = read_modelfile(file)
    stored = ensure_stored(asked.source, quiet=quiet)
    made = asked.preset.over(preset_of(stored))
    Library(store_home()).copy(stored.name, name, made.dumps())
    print(f"created '{name}'")


@app.command()
def prune() -> None:
    """Delete interrupted pulls, and what no name holds any more.

    `moeinf list --all` shows what was interrupted; pulling again would go on with it.
    """
    from moeinf.store.library import Library
    from moeinf.text.quantities import size_text

    pulls, freed = Library(store_home()).prune()
    print(f"{size_text(freed)} freed, {pulls} interrupted {'pull' if pulls == 1 else 'pulls'} among it")


@app.command()
def verify(model: StoredName, quiet: Quiet = False) -> None:
    """Compare every expert and file with its checksum."""
    from moeinf.store.verify import verify as find_faults
    from moeinf.terminal.progress import ByteCount, StatusLine

    stored = _stored(model)
    line = StatusLine(sys.stderr, enabled=sys.stderr.isatty() and not quiet)
    notes: list[str] = []
    faults = find_faults(stored, ByteCount(line, f"verifying {stored.name}", stored.manifest.size_bytes), notes.append)
    line.clear()
    for each in notes:
        print(f"note: {each}", file=sys.stderr)
    manifest = stored.manifest
    if faults:
        print("\n".join(faults))
        raise MoeinfError(f"{len(faults)} fault(s) in {stored.name}; pull it again")
    num_files = len(stored.shard_paths) + len(manifest.files)
    print(f"verified {num_files} files, {manifest.moe.total_experts} experts")


@app.command()
@with_flags(without=("num_beams", "policy", "predictor"))  # what is measured is fed token by token
def bench(
    model: ModelName,
    num_prompt: Annotated[
        int, typer.Option("--num-prompt", "-p", metavar="TOKENS", min=1, help="Length of the prompt.")
    ] = 128,
    num_decode: Annotated[
        int, typer.Option("--num-decode", "-n", metavar="TOKENS", min=2, help="How many tokens to decode.")
    ] = 64,
    repeats: Annotated[
        int, typer.Option("--repeats", "-r", metavar="N", min=0, help="How many warm requests follow the cold one.")
    ] = 3,
    prompt_file: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Text to run on. [default: built in]")
    ] = None,
    routing: Annotated[
        Path | None, typer.Option(metavar="TRACE", help="Route as this trace says, in place of the model's routers.")
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FORM", help="Form of the figures: table, md, csv, json, jsonl.")
    ] = "table",
    policy: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Eviction policies, one after the other: names with commas, or all."),
    ] = None,
    predictor: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Predictors, likewise, each with every policy.")
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Print where the time of a token went.")] = False,
    quiet: Quiet = False,
    *,
    guess: GuessOptions,
    config: RuntimeConfig,
) -> None:
    """Time a model on real text, with a cold and a warm cache."""
    from moeinf.bench.report import check_form, format_rows, profile_text

    check_form(output)
    from moeinf.bench.comparison import compare, comparison_text, configurations
    from moeinf.bench.live import Workload, run_bench
    from moeinf.engine.stored.preset import preset_of
    from moeinf.terminal.notes import say
    from moeinf.terminal.opening import ensure_stored

    report: Callable[[str], None] = (lambda line: None) if quiet else say
    workload = Workload(num_prompt, num_decode, repeats, prompt_file, routing, guess)
    workload.text()  # refuses a file that cannot be read before a model is pulled
    configs = configurations(config, policy, predictor)
    stored = ensure_stored(model, quiet=quiet)
    configs = [preset_of(stored).configured(each) for each in configs]
    if len(configs) == 1:
        rows = run_bench(stored, configs[0], workload, report)
        print(format_rows(rows, output))
    else:
        rows = compare(stored, configs, workload, report)
        print(comparison_text(rows) if output == "table" else format_rows(rows, output))
    if profile:
        print(
            ("\n" if output in ("table", "md") else "") + profile_text(rows),
            file=sys.stdout if output in ("table", "md") else sys.stderr,
        )


@app.command()
@with_flags()
def serve(*, options: ServerOptions, config: RuntimeConfig) -> None:
    """Serve the APIs of OpenAI, ollama and Anthropic (also: start)."""
    from moeinf.server.serve import HttpServer, log_to_stderr
    from moeinf.store.library import Library
    from moeinf.terminal.notes import say

    server = HttpServer(Library(store_home()), config, options, keys_of(options, api_key()))
    log_to_stderr()
    say(f"listening on {server.url}")
    server.run()


app.command("start", hidden=True)(serve)


@app.command()
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
    """Learn from traces what to evict, and what to read ahead.

    The earlier requests train and the later ones measure. What is better than the default is used from then on. A
    network decides what is evicted; of traces with states (--trace-states), maps predict what is read ahead.
    """
    from moeinf.bench.tuning.live_maps import timed_live
    from moeinf.bench.tuning.maps import learn_maps, missing
    from moeinf.bench.tuning.tune import Course, requests_of, require_torch
    from moeinf.bench.tuning.tune import tune as trained
    from moeinf.engine.stored.tuned_file import check_writable, save_maps, save_tuned
    from moeinf.terminal.progress import StatusLine
    from moeinf.terminal.tuning import map_lines, progress_of, tuned_lines

    require_torch()
    stored = _stored(model)
    check_writable(stored)
    requests = requests_of(trace, stored.name, stored.id, stored.manifest.moe)
    line = StatusLine(sys.stderr, enabled=sys.stderr.isatty() and not quiet)
    network = trained(requests, stored.id, Course(rounds, seed), progress_of(line))
    save_tuned(stored, network)
    line.clear()
    print("\n".join(tuned_lines(stored.name, network)))
    if lacks := missing(requests):
        print(f"\n{lacks}")
        return
    maps, recalls = learn_maps(requests, stored.id, seed, progress_of(line))
    save_maps(stored, maps)  # not in use before it has run
    if maps.gain.simulated_better:
        maps = timed_live(stored, maps, progress_of(line))
        save_maps(stored, maps)
    line.clear()
    print("\n".join(["", *map_lines(stored.name, maps, recalls)]))


@app.command()
def ps(host: ServerHost = None, json: AsJson = False) -> None:
    """Show which model a running server has loaded."""
    from json import dumps

    from moeinf.terminal.remote.client import ServerClient
    from moeinf.terminal.remote.running import running_lines, running_models

    models = running_models(ServerClient(host or server_address(), api_key()))
    _print(dumps(models, indent=2) if json else "\n".join(running_lines(models)))


@app.command()
def stop(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model that is loaded.")], host: ServerHost = None
) -> None:
    """Have a running server close a model, once its answer has ended."""
    from moeinf.terminal.remote.client import ServerClient
    from moeinf.terminal.remote.running import stop_model

    stop_model(ServerClient(host or server_address(), api_key()), model)


app.command()(doctor)
app.command()(fit)
app.add_typer(trace_app)


@app.command("help")
def show_help(verb: Annotated[str, typer.Argument(metavar="VERB", help="Only this one.")] = "") -> None:
    """Show this, or the options of a verb."""
    raise typer.Exit(run_command([word for word in (verb, "--help") if word]))


@app.command()
@with_flags()
def simulate(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Folders of recorded routing.")],
    json: AsJson = False,
    *,
    options: SimulateOptions,
) -> None:
    """Replay recorded routing through policies and predictors.

    Prints hit rates; with --link, --compute and --expert-bytes the times of a simulated machine. docs/policies.md has
    the formulas.
    """
    from moeinf.bench.simulation.plan import plan_of
    from moeinf.bench.simulation.plot import write_plot
    from moeinf.bench.simulation.report import as_json, tables
    from moeinf.bench.simulation.simulate import simulate as simulated_of
    from moeinf.terminal.progress import StatusLine
    from moeinf.terminal.traces.picture import check_picture

    plan = plan_of(options)
    if plan.plot is not None:
        check_picture(plan.plot)
    status = StatusLine(sys.stderr, enabled=sys.stderr.isatty())
    simulated = simulated_of(traces, plan, status.show)
    status.clear()
    if plan.plot is not None:
        write_plot(simulated, plan, plan.plot)
    _print(as_json(simulated, plan) if json else "\n".join(tables(simulated, plan)))


def _print(text: str) -> None:
    """Prints a text that came with a checkpoint, without the characters that a terminal would act on."""
    from moeinf.terminal.screen import harmless

    print(harmless(text) if sys.stdout.isatty() else text)


def _stored(name: str) -> StoredModel:
    """The stored model of this name, or of this GGUF file.

    Raises ModelNotFoundError, which says how to fetch one that is known.
    """
    from moeinf.pull.model_names import known_sources, outside_origin
    from moeinf.store.library import Library

    outside = outside_origin(name)
    if outside is not None and outside.kind == "file":
        from moeinf.terminal.opening import ensure_stored

        return ensure_stored(name, quiet=True)
    try:
        return Library(store_home()).find(name)
    except ModelNotFoundError:
        if name.lower().removesuffix(":latest") in known_sources(store_home()):
            raise ModelNotFoundError(f"model '{name}' is not stored; `moeinf pull {name}` fetches it") from None
        raise


def main() -> None:
    """Runs the console command: every error becomes one line on stderr and an exit code."""
    open_streams()
    code = run_command(sys.argv[1:])
    try:
        sys.stdout.flush()
    except (BrokenPipeError, OutputError) as error:
        drop_output()
        code = code or (_fail(error) if isinstance(error, OutputError) else 1)
    sys.exit(code)


def run_command(arguments: list[str]) -> int:
    """Runs the words that follow `moeinf`; returns the exit code."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    debug = debug_wanted() or "--debug" in arguments[:end]
    options = [word for word in arguments[:end] if word != "--debug"]
    try:
        arguments = [*with_think(options), *arguments[end:]]
        return int(app(arguments, prog_name="moeinf", standalone_mode=False) or 0)
    except SystemExit as error:  # typer's own for a broken pipe
        return error.code if isinstance(error.code, int) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone
        drop_output()
        return 1
    except Exception as error:  # this is the top: nobody above could name the fault
        if debug:
            traceback.print_exc()
        if isinstance(error, OutputError):
            drop_output()
        return _fail(error)


def _fail(error: Exception) -> int:
    from moeinf.store.files import named
    from moeinf.terminal.screen import harmless

    if isinstance(error, OSError) and error.errno is not None:  # a fault of the machine or of a file, not of ours
        error = named(error)
    if isinstance(error, MoeinfError):
        message, code = str(error), error.exit_code
    elif hasattr(error, "format_message"):  # click's errors: a wrong option, a missing argument
        message, code = usage_text(error), 2
    else:
        message, code = f"unexpected {type(error).__name__}: {error}; run again with --debug and report it", 1
    print(f"Error: {harmless(' '.join(message.split()))}", file=sys.stderr)
    return code
