"""The layer of a stored model that guesses at tokens (MTP), which has a store of its own."""

from __future__ import annotations

from moeinf.store.library import Library, StoredModel


def mtp_fingerprint(stored: StoredModel) -> str:
    """What the record of its source says it was made of."""
    return stored.manifest.formats.asked.of(f"mtp of {stored.id}")


def stored_mtp(stored: StoredModel, library: Library) -> StoredModel | None:
    """None where it has not been made yet."""
    return next((made for made in library.made_of(mtp_fingerprint(stored)) if made.name), None)
