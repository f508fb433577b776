"""Pictures of requests, in base64 and in data: URLs as encoders write them."""

from __future__ import annotations

import base64
from urllib.parse import quote, quote_from_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeinf.server.http_errors import Refusal
from moeinf.server.prompt.pictures import picture_at, picture_of

HEADS = [
    "data:image/png;base64,",
    "DATA:IMAGE/PNG;BASE64,",
    "data:;base64,",
    "data:image/png;charset=utf-8;base64,",
    "data:image/jpeg;name=a%2Cb.jpg;base64,",
    "data:image/svg+xml; charset=x ;base64,",
    "data:application/octet-stream;base64,",
    " data:image/x-icon ; base64,",
    "data:image/vnd.microsoft.icon;base64,",
]


def in_lines(text: str, end: str, width: int = 8) -> str:
    return end.join(text[at : at + width] for at in range(0, len(text), width)) + end


@pytest.mark.parametrize("head", HEADS)
@given(data=st.binary(min_size=1, max_size=60), end=st.sampled_from(["\n", "\r\n", " ", "\t", "\f"]))
def test_every_spelling_of_base64_is_read(head: str, data: bytes, end: str) -> None:
    coded = base64.b64encode(data).decode()
    spellings = [
        coded,
        coded.rstrip("="),
        base64.urlsafe_b64encode(data).decode(),
        in_lines(coded, end),
        in_lines(coded.rstrip("="), end),
    ]
    for text in (*spellings, quote(coded), quote(in_lines(coded, end)), quote(coded, safe="")):
        assert picture_at({"url": head + text}, "x")["image"] == data
        assert picture_at(head + text, "x")["image"] == data
        assert picture_of(head + text, "x")["image"] == data, "some clients put the whole URL into images of ollama"
    for text in spellings:
        assert picture_of(text, "x")["image"] == data


@given(st.binary(max_size=60))
def test_data_may_be_percent_encoded_instead(data: bytes) -> None:
    assert picture_at(f"data:image/png,{quote_from_bytes(data)}", "x")["image"] == data
    assert picture_at(f"data:,{quote_from_bytes(data, safe='')}", "x")["image"] == data


@pytest.mark.parametrize("url", ["http://a/b.png", "https://a/data:x,", "file:///a", "image.png", "", None, 5, [], {}])
def test_nothing_is_fetched(url: object) -> None:
    for given_url in (url, {"url": url}):
        with pytest.raises(Refusal, match="nothing is fetched"):
            picture_at(given_url, "messages[0]")


@pytest.mark.parametrize("data", ["", None, 5, "data:image/png;base64", "a!b?", "data:;base64,*", "x", "AAAAA", "A=AA"])
def test_what_is_no_picture_is_refused_by_its_place(data: object) -> None:
    with pytest.raises(Refusal, match=r"messages\[0\]"):
        picture_of(data, "messages[0]")
