"""Gives a stored model the chat template of moeinf's own that an older version has left it without."""

from __future__ import annotations

from collections.abc import Callable

from moeinf.store.files import errors_named, publish
from moeinf.store.library import StoredModel
from moeinf.text.templates.file import TEMPLATE_FILE
from moeinf.text.templates.own import OWN_NOTE, names_of, own_template

_READ = ("config.json", "tokenizer_config.json")


def give_template(model: StoredModel, note: Callable[[str], None], chat_code: Callable[[], str] = str) -> None:
    """Writes it beside the weights, and tells so, where there is one to give. Raises StoreError.

    chat_code: as Source.chat_code, called where it decides.
    """
    with errors_named(model.path):
        files = {path.name: path.read_bytes() if path.name in _READ else b"" for path in model.path.iterdir()}
        called = names_of(model.manifest.source)
        if not own_template(files, called):
            return
        publish(model.path / TEMPLATE_FILE, own_template(files, called, chat_code()).encode())
    note(OWN_NOTE)
