"""What the environment says of the Hub is used, or refused by the name of its variable and without its secrets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from moeinf.errors import UnreachableError, UsageError
from moeinf.pull.hub.hub_errors import hub_errors_named, transport_error
from moeinf.pull.hub.settings import check_certificates, checked_endpoint, checked_token


@pytest.mark.parametrize("token", ["hf_abc", "hf_abc\n", " hf_abc\r\n", "\thf_abc "])
def test_a_token_may_have_a_line_end(token: str) -> None:
    assert checked_token(token) == "hf_abc"


@pytest.mark.parametrize("token", [None, "", "\n", " "])
def test_no_token_is_none(token: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    assert checked_token(token) is None


@pytest.mark.parametrize("token", ["hf_é", "hf_a\nb", "hf_a b", "hf_\x00", "hf_\ud83d"])
def test_what_no_token_holds_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(UsageError, match="--token has characters") as refused:
        checked_token(token)
    assert token not in str(refused.value)


@pytest.mark.parametrize("token", ["hf_é", "hf_a b", "hf_\x01", "hf_\u2028x"])
def test_what_no_token_holds_is_refused_in_the_environment_too(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(UsageError, match=r"HF_TOKEN, or the file .* has characters") as refused:
        checked_token(None)
    assert token not in str(refused.value)
    assert checked_token("hf_abc") == "hf_abc"


@pytest.mark.parametrize("blank", ["", " ", "\t", "/"])
def test_an_endpoint_that_is_left_blank_is_none(blank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", blank)
    assert checked_endpoint() == "https://huggingface.co"


@pytest.mark.parametrize("given", ["http://mirror:8080", " http://mirror:8080/ ", "http://mirror:8080//"])
def test_an_endpoint_may_have_a_slash_and_spaces_at_its_ends(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", given)
    assert checked_endpoint() == "http://mirror:8080"


@pytest.mark.parametrize("given", ["mirror", "127.0.0.1:9", "ftp://x", "http://", "http://[::1", "HF.co"])
def test_what_is_no_endpoint_is_refused_by_the_name_of_its_variable(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", given)
    with pytest.raises(UsageError, match=r"HF_ENDPOINT is .*must be an address"):
        checked_endpoint()


@pytest.mark.parametrize("variable", ["HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"])
def test_a_variable_that_the_hub_s_library_cannot_read_is_named(variable: str) -> None:
    code = "from moeinf.errors import UsageError\ntry:\n    import moeinf.pull.hub\nexcept UsageError as e: print(e)"
    made = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {variable: "soon"}, capture_output=True, text=True, check=True
    )
    assert made.stdout == f"{variable} has a value that huggingface_hub cannot read; correct it, or unset it\n"


@pytest.mark.parametrize("content", [None, b"", b"no certificate\n", b"\x00\xff"])
def test_certificates_that_are_none_are_named(
    content: bytes | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a look at them, their error was told of the folder of models."""
    file = tmp_path / "certificates.pem"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with pytest.raises(UsageError, match=r"SSL_CERT_FILE names .*certificates.pem.* no file of certificates"):
        check_certificates()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path))
    with pytest.raises(UsageError, match="SSL_CERT_FILE"):
        check_certificates()


def test_folders_of_certificates_are_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", f"{tmp_path / 'none'}{os.pathsep}{tmp_path}")
    check_certificates()
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    with pytest.raises(UsageError, match=r"SSL_CERT_DIR names .* no folder"):
        check_certificates()
    monkeypatch.delenv("SSL_CERT_DIR")
    check_certificates()


def test_a_certificate_that_is_not_trusted_is_told_with_the_remedy() -> None:
    said = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:1006)"
    with (
        pytest.raises(UnreachableError, match=r"not trusted here \(self-signed certificate\).*SSL_CERT_FILE"),
        hub_errors_named("org/repo", "", "https://hub"),
    ):
        raise transport_error()(said)
