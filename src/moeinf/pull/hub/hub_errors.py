"""Turns errors of huggingface_hub and its HTTP client into one line with the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Final

from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from moeinf.errors import HubError, UnreachableError, UsageError

_REFUSED: Final = re.compile(r"CERTIFICATE_VERIFY_FAILED\] certificate verify failed: ([^(]{1,200})")


def transport_error() -> type[Exception]:
    """Base of what the HTTP client raises when no answer comes, or none that can be decoded; the client is httpx or
    httpx2, as the Hub's library has brought it."""
    client = HfHubHTTPError.__mro__[1].__module__.partition(".")[0]
    error: type[Exception] = import_module(client).RequestError
    return error


@contextmanager
def hub_errors_named(repo: str, revision: str, endpoint: str) -> Iterator[None]:
    """Turns the library's errors inside into HubError or UsageError. None names a URL with secrets, or a token."""
    try:
        yield
    except HFValidationError as error:
        raise UsageError(f"{repo[:100]!r} is not the name of a Hub repository (org/repo)") from error
    except OfflineModeIsEnabled as error:
        raise offline_error(repo) from error
    except GatedRepoError as error:  # before its base class, which means something else
        raise HubError(f"{repo} is gated: accept its terms at {endpoint}/{repo}, then `export HF_TOKEN=...`") from error
    except RepositoryNotFoundError as error:
        raise HubError(
            f"{repo} was not found on {endpoint}, or is private: check the name, or `export HF_TOKEN=...`"
        ) from error
    except RevisionNotFoundError as error:
        raise HubError(f"{repo} has no revision {revision[:100]!r}; see {endpoint}/{repo}") from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        remedy = "check HF_TOKEN and your access" if status in (401, 403) else "repeat the pull later"
        raise HubError(f"{endpoint} answers HTTP {status} for {repo}; {remedy}") from error
    except transport_error() as error:
        refused = _REFUSED.search(str(error))
        if refused is not None:
            raise UnreachableError(
                f"{endpoint} shows a certificate that is not trusted here ({refused[1].strip()}); where a proxy of "
                "your network stands between, name a file with its certificate in SSL_CERT_FILE"
            ) from error
        raise UnreachableError(
            f"{endpoint} is out of reach ({type(error).__name__}); check the connection, the proxy and HF_ENDPOINT"
        ) from error


def offline_error(repo: str) -> UnreachableError:
    return UnreachableError(f"{repo} is not in cache and offline; unset HF_HUB_OFFLINE to download it")
