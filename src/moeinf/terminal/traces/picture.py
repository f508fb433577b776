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


def check_new_picture(path: Path) -> None:
    """Raises UsageError as check_picture does, and for a file that is there or has no folder."""
    if path.exists():
        raise UsageError(f"--plot {path} is there already; name a new file")
    if not path.parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.parent}")
    check_picture(path)


def save_picture(figure: Any, path: Path) -> None:
    """Writes a figure in the form that the path's name says; the same figure makes the same bytes.

    Raises UsageError where the file cannot be written.
    """
    import matplotlib

    buffer, form = io.BytesIO(), path.suffix.lower()[1:]
    with matplotlib.rc_context({"svg.hashsalt": "moeinf", "svg.fonttype": "none"}):
        figure.savefig(buffer, format=form, dpi=120, metadata={"Date": None} if form == "svg" else None)
    with errors_named(path, UsageError):
        publish(path, buffer.getvalue())
