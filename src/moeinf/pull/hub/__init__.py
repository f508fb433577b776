"""The Hugging Face Hub: which files a repository has, and how they come here."""

from __future__ import annotations

import os

from moeinf.errors import UsageError


def _check_numbers() -> None:
    """huggingface_hub reads its variables once, when it is imported. Raises UsageError for one that it cannot read."""
    try:
        import huggingface_hub.constants  # noqa: F401
    except ValueError as error:
        named = (name for name, value in os.environ.items() if name.startswith("HF_") and value and value in str(error))
        variable = next(named, "a variable that begins with HF_")
        raise UsageError(f"{variable} has a value that huggingface_hub cannot read; correct it, or unset it") from error


_check_numbers()
