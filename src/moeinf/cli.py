"""The command line: which verbs there are, and how an error becomes one line and an exit code.

A verb is one short function, which parses, calls and prints. Those of a topic stand in a `verbs.py` of their room.
Heavy imports are inside the verbs.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeinf import __version__
from moeinf.bench.bench_verbs import bench, compare, simulate, tune
from moeinf.bench.forecast.forecast_verbs import doctor, fit, planned_text, stored_forecast
from moeinf.config import RuntimeConfig
from moeinf.config.batch_options import BatchOptions
from moeinf.config.environment import api_key, debug_wanted, store_home, unknown_variables
from moeinf.config.fit_options import FitOptions, fits
from moeinf.config.pull_options import PullOptions
from moeinf.config.server_options import ServerOptions, keys_of
from moeinf.errors import MoeinfError, OutputError, UsageError, of_the_machine
from moeinf.sampling.params import SamplingParams
from moeinf.terminal.agents.launch_verb import launch
from moeinf.terminal.arguments.chat_options import ChatOptions
from moeinf.terminal.arguments.first_steps import first_steps
from moeinf.terminal.arguments.flags import SamplingOptions, with_flags
from moeinf.terminal.arguments.named import AsJson, Lora, ModelName, PromptWords, Quant, Quiet, StoredName, Yes
from moeinf.terminal.arguments.shell_completion import model_names
from moeinf.terminal.arguments.short_help import add_verb, help_width
from moeinf.terminal.arguments.wrong_use import usage_text, with_think
from moeinf.terminal.launched import with_launched
from moeinf.terminal.process.streams import drop_output, open_streams
from moeinf.terminal.process.unbegun_threads import end_with_unbegun_threads
from moeinf.terminal.rank_worker import worker
from moeinf.terminal.remote.client_verbs import ps, stop
from moeinf.terminal.screen import print_fitted, print_harmless
from moeinf.terminal.stored.store_verbs import cp, create, list_models, prune, rm, spread, verify
from moeinf.terminal.traces.trace_verbs import app as trace_app
from moeinf.terminal.user_notes import NoteHandler, say

if TYPE_CHECKING:
    from moeinf.store.library import StoredModel

app = typer.Typer(
    name="moeinf",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "terminal_width": help_width()},
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
        say(f"note: {line}")
    if ctx.invoked_subcommand is None:
        steps = first_steps()
        print(ctx.get_help())
        print_fitted(f"\n{steps[0].upper()}{steps[1:]}.")


@with_flags()
def run(
    model: ModelName,
    prompt: PromptWords = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="PATH", help="Read the prompt from a file.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt as it is, without a chat template.")] = False,
    json: AsJson = False,
    plan: Annotated[bool, typer.Option("--plan", help="Say what it would take, and how fast it would be.")] = False,
    yes: Yes = False,
    *,
    many: BatchOptions,
    options: ChatOptions,
    sampling: SamplingOptions,
    config: RuntimeConfig,
    quant: Quant = None,
    lora: Lora = None,
) -> None:
    """Answer a prompt, or chat, or all requests of a file. A model that is not stored yet is pulled first.

    Where `moeinf serve` runs on this machine, it answers, unless options of the model ask for what it cannot do.
    """
    from moeinf.engine.stored.preset import preset_of
    from moeinf.terminal.arguments.values import refuse_template_options
    from moeinf.terminal.chat.keyboard import typing_unseen
    from moeinf.terminal.conversation_loop import Conversation
    from moeinf.terminal.oneshot import answer_once, prompt_text
    from moeinf.terminal.picture_files import check_pictures, picture_part, pictures_among
    from moeinf.terminal.session_opening import check_template, ensure_stored, hold_chat, opened
    from moeinf.terminal.user_notes import Notices

    made = PullOptions(quant=quant, lora=lora)
    if plan:
        if lora:
            raise UsageError("--lora: an adapter changes neither the size nor the speed of a model; leave it out")
        return print_fitted(planned_text(model, config, quant))
    config = with_launched(config, model, quiet=options.quiet)
    if many.batch is not None:
        from moeinf.batch.batch_verb import BatchDefaults, answer_batch

        if prompt or file or json:
            given = "a prompt" if prompt else "--file" if file else "--json"
            raise UsageError(f"--batch has its prompts in a file, and writes JSON; leave {given} out")
        answer_batch(model, many, BatchDefaults(sampling, options, raw), config, made)
        return
    pictures, words = pictures_among(prompt or [])
    text = prompt_text(words, file)
    if not text and (raw or json):
        raise UsageError(f"{'--raw' if raw else '--json'} needs a prompt; give one")
    if raw:
        refuse_template_options(options)
    stored = ensure_stored(model, made, config, quiet=options.quiet, yes=yes)
    check_template(stored, options)
    check_pictures(stored, pictures, words)
    notices, parts = Notices(), [picture_part(path) for path in pictures]
    config = replace(config, pictures=bool(parts) or text is None)
    hidden = typing_unseen() if text is None else nullcontext()
    with hidden, opened(stored, config, notices, quiet=options.quiet, keep_alive=options.keepalive) as loaded:
        preset = preset_of(stored)
        said = list(preset.messages)
        conversation = Conversation(loaded, sampling, options, said, notices=notices, preset=preset, pictures=parts)
        notices.show()
        if text is None:
            hold_chat(conversation, config)
        elif text:
            raise typer.Exit(answer_once(conversation, text, raw=raw, as_json=json))


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
    fit_options: FitOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be fetched, and fetch nothing.")] = False,
    quiet: Quiet = False,
    yes: Yes = False,
) -> None:
    """Fetch and convert a model, or go on where that stopped. GGUF files are used as they are.

    Of a name that moeinf knows, the form is fetched that suits this machine; a tag or --quant takes another. --size and
    --quant with a number of bits choose the format of each part by what it costs, which is measured: the checkpoint is
    stored as it is first, and read once for every six parts.
    """
    from moeinf.terminal.pull_progress import resumable

    if fits(options.quant, fit_options):
        from moeinf.bench.divergence.fit_pull import fit_pull

        with resumable(source, options, fit_options):
            return fit_pull(source, options, fit_options, dry_run=dry_run, quiet=quiet)
    from moeinf.pull.pull import plan_pull
    from moeinf.references.fetching import fetch, origin_of
    from moeinf.references.meaning import meaning
    from moeinf.store.library import Library
    from moeinf.terminal.forms.choosing import chosen_form
    from moeinf.terminal.pull_progress import PullDisplay, plan_lines

    library, plan = Library(store_home()), None
    found = meaning(source, options, library)
    found = chosen_form(found, library, RuntimeConfig(), "pull", yes=yes or dry_run, quiet=quiet)
    with resumable(source, options), PullDisplay(sys.stderr, quiet=quiet) as display:
        if dry_run:
            plan = plan_pull(origin_of(found, library), found.options, home=library.home, progress=display)
        else:
            stored = fetch(found, library, display, again=True)
    if plan is not None:
        print("\n".join(plan_lines(plan)))
    elif options.also:
        spread(stored.name, Path(options.also), quiet=quiet)
    if plan is None and not quiet:
        print("success", file=sys.stderr)


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
    devices: Annotated[
        str, typer.Option(metavar="NAME,...", help="Print the share of each of these cards: opens the model there.")
    ] = "",
    workers: Annotated[
        str, typer.Option(metavar="HOST:PORT,...", help="Print the share of each rank: opens the model on all of them.")
    ] = "",
    worker_key_file: Annotated[str, typer.Option(metavar="PATH", help="File with the key of the workers.")] = "",
) -> None:
    """Show what a stored model is, and the memory it needs."""
    from moeinf.engine.stored.facts import StoredFacts, licence_text
    from moeinf.engine.stored.modelfile import own_modelfile
    from moeinf.engine.stored.preset import preset_of
    from moeinf.terminal.stored.find_stored import find_stored
    from moeinf.terminal.stored.show import parameters_text, show_json, show_lines

    def sections(stored: StoredModel) -> str:
        return "\n".join(show_lines(stored, verbose=verbose))

    shares = partial(_shares, devices=devices, workers=workers, worker_key_file=worker_key_file)
    texts: dict[str, tuple[bool, Callable[[StoredModel], str]]] = {
        "--license": (licence, licence_text),
        "--parameters": (parameters, parameters_text),
        "--template": (template, lambda stored: StoredFacts(stored).template),
        "--system": (system, lambda stored: preset_of(stored).system),
        "--modelfile": (modelfile, own_modelfile),
        "--plan": (plan, stored_forecast),
        "--json": (json, show_json),
        "--verbose": (verbose, sections),
        "--devices": (bool(devices), shares),
        "--workers": (bool(workers), shares),
    }
    chosen = {flag: text for flag, (wanted, text) in texts.items() if wanted}
    if len(chosen) > 1:
        raise UsageError(f"only one of {', '.join(texts)} at a time, not {' and '.join(chosen)}")
    text = next(iter(chosen.values()), shares if worker_key_file else sections)
    for_people = text in (sections, shares, stored_forecast)
    (print_fitted if for_people else print_harmless)(text(find_stored(model)))


def _shares(stored: StoredModel, devices: str, workers: str, worker_key_file: str) -> str:
    """What each card or rank has of the model, one a line; opens it on all of them."""
    from moeinf.terminal.arguments.values import runtime_config
    from moeinf.terminal.session_opening import shares_text

    if devices and "," not in devices:
        raise UsageError(f"--devices {devices} is one card, which has all experts; name several, or leave it out")
    given = {"device": devices, "workers": workers, "worker_key_file": worker_key_file}
    return shares_text(stored, runtime_config({key: value for key, value in given.items() if value}))


@with_flags()
def serve(*, options: ServerOptions, config: RuntimeConfig) -> None:
    """Serve the APIs of OpenAI, ollama and Anthropic (also: start)."""
    from moeinf.server.gate.log import log_to_stderr
    from moeinf.server.serve import HttpServer
    from moeinf.store.library import Library

    server = HttpServer(Library(store_home()), config, options, keys_of(options, api_key()))
    log_to_stderr()
    say(f"listening on {server.url}")
    server.run()


def show_help(
    verb: Annotated[
        list[str] | None, typer.Argument(metavar="[VERB]...", help="Only this one, such as trace show.")
    ] = None,
) -> None:
    """Show this, or the options of a verb."""
    raise typer.Exit(run_command([*(verb or ()), "--help"]))


# The order of the help text.
_VERBS: tuple[Callable[..., None], ...] = (
    *(run, pull, list_models, show, rm, cp, create, spread, prune, verify),
    *(serve, launch, ps, stop, worker),
    *(doctor, fit, bench, compare, tune, simulate),
    show_help,
)
_NAMES = {list_models: "list", show_help: "help"}
for _verb in _VERBS:
    add_verb(app, _NAMES.get(_verb) or _verb.__name__, _verb)
app.add_typer(trace_app)
add_verb(app, "ls", list_models, hidden=True)
add_verb(app, "start", serve, hidden=True)


def main() -> None:
    """Runs the console command: every error becomes one line on stderr and an exit code."""
    open_streams()
    end_with_unbegun_threads()
    logging.getLogger("moeinf").addHandler(NoteHandler())
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
    except SystemExit as error:  # typer's own for a broken pipe, and Ended
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
        return _fail(error, options)


def _fail(error: Exception, options: Sequence[str] = ()) -> int:
    from moeinf.store.files import named

    if isinstance(error, OSError) and error.errno is not None:  # a fault of the machine or of a file, not of ours
        error = named(error)
    error = of_the_machine(error) or error
    if isinstance(error, MoeinfError):
        message, code = str(error), error.exit_code
    elif hasattr(error, "format_message"):  # click's errors: a wrong option, a missing argument
        message, code = usage_text(error, options), 2
    else:
        message, code = f"unexpected {type(error).__name__}: {error}; run again with --debug and report it", 1
    say(f"Error: {' '.join(message.split())}")
    return code
