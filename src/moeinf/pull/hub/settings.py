"""What the environment says of the Hub, looked at before the HTTP client stumbles over it."""

from __future__ import annotations

import os
import ssl
from urllib.parse import urlsplit

from huggingface_hub import constants, get_token

from moeinf.errors import UsageError


def checked_token(token: str | None) -> str | None:
    """The token that was given, else that of the environment or of the Hub's own file, without the line end that it was
    pasted with; None for none. Raises UsageError for what is none.
    """
    given = (token or "").strip()
    token = given or (get_token() or "").strip()
    if not (token.isascii() and token.isprintable() and " " not in token):
        source = "--token" if given else "HF_TOKEN, or the file that `hf auth login` wrote,"
        raise UsageError(f"{source} has characters that no access token has; copy it again from huggingface.co")
    return token or None


def check_certificates() -> None:
    """Raises UsageError for what SSL_CERT_FILE or SSL_CERT_DIR names, if it has no certificates: the HTTP client reads
    these in the place of its own."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file:
        try:
            ssl.create_default_context(cafile=file)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"SSL_CERT_FILE names {file[:200]!r}, which is no file of certificates (PEM) that can be read; correct "
                "it, or unset it"
            ) from error
    elif folder and not any(map(os.path.isdir, folder.split(os.pathsep))):
        raise UsageError(f"SSL_CERT_DIR names {folder[:200]!r}, which is no folder; correct it, or unset it")


def checked_endpoint() -> str:
    """The address of the Hub. HF_ENDPOINT without a letter is none. Raises UsageError for what is no address."""
    endpoint = constants.ENDPOINT.strip().rstrip("/") or "https://huggingface.co"
    try:
        sound = urlsplit(endpoint).scheme in ("http", "https") and bool(urlsplit(endpoint).hostname)
    except ValueError:
        sound = False
    if not sound:
        raise UsageError(f"HF_ENDPOINT is {endpoint[:100]!r}; must be an address such as https://huggingface.co")
    return endpoint
