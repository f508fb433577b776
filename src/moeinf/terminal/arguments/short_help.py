"""--help of the verbs with most options: those that people use, and how many more --help-all shows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from shutil import get_terminal_size
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

# By verb: the names of the parameters that --help shows.
SHOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "run": (
        *("file", "system", "think", "format", "json", "batch", "plan", "verbose", "temperature", "num_predict"),
        *("context", "ram", "device"),
    ),
    "launch": ("quiet", "context", "ram", "expert_cache", "device", "quant"),
    "bench": (
        *("num_prompt", "num_decode", "repeats", "prompt_file", "output", "policies", "profile", "plot"),
        *("context", "ram", "expert_cache", "device"),
    ),
    "serve": (
        *("host", "port", "keep_alive", "max_queue", "key_file"),
        *("context", "ram", "expert_cache", "device", "threads"),
    ),
}
_ALL, _BEHIND = "help_all", "behind_dashes"
_NARROW: Final = 52  # columns; click writes no narrower help unasked


def help_width() -> int | None:
    """The width of help on a narrow terminal; None leaves it to click."""
    columns = get_terminal_size().columns
    return max(columns - 1, 20) if columns < _NARROW else None


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        print(ctx.get_help())
        raise typer.Exit


_HelpAll = Annotated[
    bool, typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show every option and exit.")
]


def with_help_all(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with one more option, --help-all, which ends the command."""

    def command(**given: object) -> None:
        del given[_ALL]
        verb(**given)

    own = inspect.signature(verb).parameters
    added = inspect.Parameter(_ALL, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_HelpAll)
    command.__name__, command.__doc__ = verb.__name__, verb.__doc__
    command.__signature__ = inspect.Signature([*own.values(), added])  # type: ignore[attr-defined]
    command.__annotations__ = {name: each.annotation for name, each in own.items()} | {_ALL: _HelpAll}
    return command


def words_behind_dashes(ctx: typer.Context) -> tuple[str, ...]:
    """What followed `--` on the command line of a verb that keeps it apart."""
    return tuple(ctx.meta.get(_BEHIND, ()))


class VerbCommand(TyperCommand):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        """On a narrow terminal what is explained takes a third of a line, and what is longer a line of its own."""
        if help_width() is not None:
            formatter.write_dl = partial(formatter.write_dl, col_max=formatter.width // 3)
        super().format_help(ctx, formatter)


class ShortHelpCommand(VerbCommand):
    """A verb of SHOWN, by `with_help_all`. keeps_behind: whether what follows `--` is for another program."""

    shown: tuple[str, ...] = ()
    keeps_behind = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if self.keeps_behind and "--" in args:
            at = args.index("--")
            args, ctx.meta[_BEHIND] = args[:at], args[at + 1 :]
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def format_options(self, ctx: Any, formatter: Any) -> None:
        if ctx.meta.get(_ALL):
            return super().format_options(ctx, formatter)
        shown = (*self.shown, _ALL)
        rest = [each for each in self.params if each.param_type_name == "option" and each.name not in shown]
        for option in rest:
            option.hidden = True  # type: ignore[attr-defined]
        try:
            super().format_options(ctx, formatter)
        finally:
            for option in rest:
                option.hidden = False  # type: ignore[attr-defined]
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(f"{len(rest)} more options: {ctx.command_path} --help-all")


def add_verb(app: typer.Typer, name: str, verb: Callable[..., None], *, hidden: bool = False) -> None:
    """Makes the verb a command of this name; one of SHOWN has the short help."""
    if (shown := SHOWN.get(verb.__name__)) is None:
        app.command(name, hidden=hidden, cls=VerbCommand)(verb)
        return
    kind = type("ShortHelpCommand", (ShortHelpCommand,), {"shown": shown, "keeps_behind": name == "launch"})
    app.command(name, hidden=hidden, cls=kind)(with_help_all(verb))
