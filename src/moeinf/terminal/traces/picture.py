"""Pictures that matplotlib draws, which is an optional part."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Final

from moeinf.errors import UsageError
from moeinf.store.files import errors_named, publish

FORMS: Final = (".svg", ".png")


def check_picture(path: Path) -> None:
    """Raises UsageError for a name of another form than FORMS, and where matplotlib is missing."""
    if path.suffix.lower() not in FORMS:
        raise UsageError(f"--plot {path}: name a file that ends in {' or '.join(FORMS)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: pip install 'moeinf[plots]'") from error


def save_picture(figure: Any, path: Path) -> None:
    """Writes a figure in the form that the path's name says; raises UsageError where the file cannot be written."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix.lower()[1:], dpi=120)
    with errors_named(path, UsageError):
        publish(path, buffer.getvalue())
