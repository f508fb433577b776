"""What `moeinf run --batch` may be told."""

from __future__ import annotations

from dataclasses import dataclass

from moeinf.config.option import option
from moeinf.config.server_options import MOST_PARALLEL
from moeinf.errors import UsageError


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Requests that come from a file. Raises UsageError for what means nothing."""

    batch: str | None = option(
        None,
        "Answer all requests of a file, one JSON object a line, as in OpenAI's batches; - for standard input.",
        metavar="PATH",
    )
    out: str | None = option(
        None,
        "Where the answers to --batch go, a line each; the same command goes on behind those that are there. "
        "[default: standard output]",
        metavar="PATH",
    )
    rows: int | None = option(
        None,
        "Requests of --batch that are answered side by side. [default: as many as memory has room for, 32 at most; "
        "1 on a GPU]",
        metavar="N",
    )

    def __post_init__(self) -> None:
        if self.batch is None:
            for flag, value in (("--out", self.out), ("--rows", self.rows)):
                if value is not None:
                    raise UsageError(f"{flag} is for --batch PATH; give that, or leave {flag} out")
        if self.rows is not None and not 1 <= self.rows <= MOST_PARALLEL:
            raise UsageError(f"--rows must be between 1 and {MOST_PARALLEL}, not {self.rows}")
