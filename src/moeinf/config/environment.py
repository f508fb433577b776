"""The MOEINF_* variables, which only this module reads."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path

from moeinf.config import RuntimeConfig
from moeinf.config.option import option_of, options
from moeinf.config.server_options import ServerOptions, address_of
from moeinf.errors import UsageError

OTHER_VARIABLES = {  # those that belong to no option, and what each does
    "MOEINF_HOME": "folder of the store, ~/.moeinf by default",
    "MOEINF_API_KEY": "the key that clients of `moeinf serve` must give",
    "MOEINF_FOREIGN": "0 leaves models alone that other programs have on this disk",
    "MOEINF_NOHISTORY": "1 keeps no history of the chat",
    "MOEINF_DEBUG": "1 shows tracebacks",
}
_RENAMED = {"MOEINF_CONTEXT": "MOEINF_NUM_CTX"}  # they did something once, so that a note would not suffice
_OF_TESTS = ("MOEINF_TEST_DATA",)


def variable(name: str) -> str:
    """The text of a variable, "" where it is not set, without blanks around it and without quotes that are a pair.

    A shell would have taken those away. Files of variables (docker --env-file, those with line ends of Windows) and
    mounted secrets keep them.
    """
    text = os.environ.get(name, "").strip()
    return text[1:-1].strip() if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def with_environment(**given: object) -> RuntimeConfig:
    """RuntimeConfig from `given`, else from MOEINF_* variables, else the default. None counts as not given.

    Raises UsageError for an unknown field, for a variable whose text is not of the field's type, and for options of
    which one would make the other mean nothing.
    """
    for old, new in _RENAMED.items():
        if variable(old):
            raise UsageError(f"{old} is called {new} now, as the flag is; set that instead")
    said = variables_set(RuntimeConfig) | {name: value for name, value in given.items() if value is not None}
    config = RuntimeConfig.of(**said)
    _refuse_what_would_mean_nothing(config, said)
    return config


def variables_set(group: type) -> dict[str, object]:
    """The options of a group that variables set, by the names of their fields. Raises UsageError."""
    texts = [(each, variable(each.variable)) for each in options(group)]
    return {each.name: each.parse(each.variable, text) for each, text in texts if text}


def unknown_variables(*groups: type) -> list[str]:
    """A line for each MOEINF_* variable that nothing reads. groups: whose options have variables."""
    known = [*(each.variable for group in groups for each in options(group)), *OTHER_VARIABLES]
    lines = []
    for name in sorted(os.environ):
        if name.startswith("MOEINF_") and name not in (*known, *_RENAMED, *_OF_TESTS):
            close = difflib.get_close_matches(name[7:], [each[7:] for each in known], n=1)  # after MOEINF_
            hint = f"did you mean MOEINF_{close[0]}?" if close else "docs/reference/cli.md lists those that are"
            lines.append(f"{name} is no variable of moeinf, and changes nothing; {hint}")
    return lines


def _refuse_what_would_mean_nothing(config: RuntimeConfig, said: Mapping[str, object]) -> None:
    idle = []
    if config.reading.reader == "pure":
        idle += [
            (f"--queue-depth {config.reading.queue_depth}", "queue_depth" in said, "one read at a time"),
            ("--direct-io", said.get("direct_io") is True, "through the page cache"),
        ]
    for option, was_said, way in idle:
        if was_said:
            raise UsageError(f"{option} means nothing to --reader pure, which reads {way}; leave one of them out")
    if not config.experts.prefetch and "predictor" in said:
        raise UsageError(
            f"--predictor {config.experts.predictor} means nothing with --no-prefetch; leave one of them out"
        )


def store_home() -> Path:
    """Folder of the store: MOEINF_HOME, else ~/.moeinf. Raises UsageError for what cannot be a folder."""
    given = variable("MOEINF_HOME") or "~/.moeinf"
    try:
        home = Path(given).expanduser()
    except RuntimeError as error:  # the system has no entry for this user, and HOME is not set
        raise UsageError(
            f"{given}, where models are stored, is in a home folder that is not known; set MOEINF_HOME to a folder"
        ) from error
    if home.exists() and not home.is_dir():
        raise UsageError(f"{home}, where models are stored, is no folder; set MOEINF_HOME to one")
    if home.is_symlink() and not home.exists():
        raise UsageError(
            f"{home}, where models are stored, is a link to {os.readlink(home)}, which is not there; make that folder, "
            "or mount its disk, or set MOEINF_HOME to another"
        )
    return home


def debug_wanted() -> bool:
    """MOEINF_DEBUG: tracebacks instead of one-line errors."""
    return variable("MOEINF_DEBUG") not in ("", "0")


def foreign_wanted() -> bool:
    """MOEINF_FOREIGN=0 leaves models of other programs alone."""
    return variable("MOEINF_FOREIGN") != "0"


def history_wanted() -> bool:
    """MOEINF_NOHISTORY switches the history file of the chat off."""
    return variable("MOEINF_NOHISTORY") in ("", "0")


def server_address() -> str:
    """MOEINF_HOST and MOEINF_PORT: where commands look for a server, and where `moeinf serve` listens.

    Raises UsageError for a host that is no address.
    """
    told = variable(option_of(ServerOptions, "host").variable) or ServerOptions().host
    port = variable(option_of(ServerOptions, "port").variable)
    if not port:
        return told
    host, _ = address_of(told)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def api_key() -> str | None:
    """MOEINF_API_KEY: the key that clients of the server must give."""
    return variable("MOEINF_API_KEY") or None
