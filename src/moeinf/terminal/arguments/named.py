"""Arguments and flags that verbs take, by name."""

from __future__ import annotations

from typing import Annotated

import typer

from moeinf.config.option import option_of
from moeinf.config.pull_options import PullOptions
from moeinf.terminal.arguments.shell_completion import model_names, stored_names

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
PromptWords = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PROMPT]...",
        help="What to answer; without one, a chat. Piped standard input comes before it. "
        "PNG and JPEG files among its words are shown to a model that sees.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Fetch the usual form of a model without a question.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress and no line about memory.")]
ServerHost = Annotated[
    str | None,
    typer.Option(
        "--host", metavar="ADDRESS", help="Where the server listens. [default: MOEINF_HOST, else this machine]"
    ),
]
Lora = Annotated[str | None, typer.Option(metavar="ADAPTER", help=option_of(PullOptions, "lora").help)]
Quant = Annotated[str | None, typer.Option(metavar="FORMAT", help=option_of(PullOptions, "quant").help)]
