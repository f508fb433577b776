"""Error lines for a wrong command line: words of other tools, and words that are nearly right."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from moeinf.errors import UsageError
from moeinf.terminal.arguments.first_steps import first_steps
from moeinf.text.thinking_text import THINK_WORDS

# Verbs of ollama that people type by habit, and what moeinf has instead.
_ABSENT: Mapping[str, str] = {
    "push": "this version uploads nothing: name the source of a model (`moeinf show --json`) to those who want it",
    "signin": "no account is needed: --token or HF_TOKEN opens what the Hugging Face Hub guards",
    "signout": "no account is needed: --token or HF_TOKEN opens what the Hugging Face Hub guards",
}


_FORMATS = "`moeinf pull SOURCE --quant q8_0 --name NAME` stores a model so, and FROM NAME is made of that"
_NO_TOOLS = "the model runs no programs here: leave it out"
_NO_EMBEDDINGS = "`moeinf serve` makes embeddings, at /v1/embeddings"
# Options of ollama, llama.cpp and vLLM: which option the verb must have for the cure, and the cure.
_ELSEWHERE: Mapping[str, tuple[str, str]] = {
    "--quantize": ("", _FORMATS),
    "--quantise": ("", _FORMATS),
    "--quantization": ("", _FORMATS),
    "--keep-alive": ("--keepalive", "--keepalive TIME keeps the model loaded after the answer"),
    "--insecure": ("", "`export HF_ENDPOINT=http://HOST` has models pulled from there, with its own scheme"),
    "--dimensions": ("", _NO_EMBEDDINGS),
    "--truncate": ("", _NO_EMBEDDINGS),
    "--experimental": ("", _NO_TOOLS),
    "--experimental-yolo": ("", _NO_TOOLS),
    "--experimental-websearch": ("", _NO_TOOLS),
    "--n-gpu-layers": ("--vram", "--vram SIZE bounds what is used of a GPU"),
    "--gpu-layers": ("--vram", "--vram SIZE bounds what is used of a GPU"),
    "--gpu-memory-utilization": ("--vram", "--vram SIZE bounds what is used of a GPU, also as 90%"),
    "--ctx-size": ("--num-ctx", "--num-ctx N is the length of the context"),
    "--max-model-len": ("--num-ctx", "--num-ctx N is the length of the context"),
    "--tensor-parallel-size": ("--devices", "--devices cuda:0,cuda:1 names the cards that share a model"),
    "--speculative-config": (
        "--speculate",
        "--speculate auto, off or always, and --draft-max N, say what is guessed at",
    ),
    "--spec-draft-n-max": ("--draft-max", "--draft-max N is how many tokens a step guesses at"),
    "--model": ("", "the name of the model stands behind the verb, without an option"),
    "--api-key": ("--key-file", "--key-file PATH or MOEINF_API_KEY says which keys clients must give"),
    "--served-model-name": ("", "`moeinf cp MODEL NAME` gives a model one more name"),
    "--download-dir": ("", "MOEINF_HOME is the folder in which models are stored"),
    "--trust-remote-code": ("", "no code of a checkpoint is ever run: leave it out"),
}


def usage_text(error: Any) -> str:
    """One line for an error of the parser of the command line."""
    if (option := getattr(error, "option_name", None)) is not None:
        known = _options(error.ctx)
        needed, remedy = _ELSEWHERE.get(option, ("", ""))
        told = remedy if needed in ("", *known) else ""
        return f"no such option: {option}; {told or _nearest(option, known)}"
    text = str(error.format_message())
    verb = re.match(r"No such command '(.*?)'", text)  # the parser's error has no field for it in every version
    if verb is None:
        context = getattr(error, "ctx", None)
        if context is not None and context.command.name == "run" and text.startswith("Missing argument 'MODEL'"):
            return f"run needs the name of a model; {first_steps()}"
        if (
            context is not None
            and context.command.name == "create"
            and (extra := re.search(r"extra argument\S* \((\S+?)[) ]", text))
        ):
            return f"{extra[1]} is one word too many; -q is --quiet here: {_FORMATS}"
        return f"{text.removesuffix('.')} (see {context.command_path if context else 'moeinf'} --help)"
    return _ABSENT.get(verb[1]) or f"no such command: {verb[1]}; {_nearest(verb[1], _verbs(error.ctx))}"


def with_think(words: list[str]) -> list[str]:
    """Writes each bare --think as --think=true, since click would take the next word for its value.

    Raises UsageError where that word is a level, since it would become a part of the prompt.
    """
    for word, following in pairwise(words):
        if word == "--think" and following in THINK_WORDS:
            raise UsageError(
                f"--think {following} may mean two things: write --think={following} for how to think, or "
                f"--think=true {following} for a prompt that begins so"
            )
    return ["--think=true" if word == "--think" else word for word in words]


def _verbs(context: Any) -> list[str]:
    return [name for name, command in context.command.commands.items() if not command.hidden]


def _options(context: Any) -> list[str]:
    return [
        name
        for param in context.command.params
        for name in (*param.opts, *param.secondary_opts)
        if name.startswith("--")
    ]


def _nearest(word: str, known: Iterable[str]) -> str:
    """Asks whether a known word was meant: one that begins so, else one that looks similar."""
    bare = {name.lstrip("-"): name for name in sorted(known)}
    word = word.lstrip("-")
    found = [name for name in bare if len(word) > 1 and name.startswith(word)]
    close = [bare[name] for name in found or difflib.get_close_matches(word, bare, n=2, cutoff=0.7)]
    return f"did you mean {' or '.join(close)}?" if close else "see --help"
