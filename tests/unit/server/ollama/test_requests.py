"""Options of ollama's API become options of ours, or a refusal in its words."""

from __future__ import annotations

from typing import Any

import pytest

from moeinf.errors import MoeinfError
from moeinf.server.ollama.requests import NamedRequest, given_options


def test_options_are_told_apart_by_what_they_change() -> None:
    params, config = given_options({"top_k": 20, "stop": ["a", "b"], "num_ctx": 512, "num_thread": 2, "num_batch": 64})
    assert params == {"top_k": 20, "stop": ("a", "b")}
    assert config == {"context": 512, "threads": 2, "prefill_chunk": 64}


@pytest.mark.parametrize(
    ("given", "params"),
    [
        ({"top_k": 40.0}, {"top_k": 40}),
        ({"temperature": 1}, {"temperature": 1}),
        ({"stop": "END"}, {"stop": ("END",)}),
        ({"seed": None, "min_p": None}, {}),
        (None, {}),
    ],
)
def test_values_that_clients_write_otherwise_mean_the_same(given: dict[str, Any], params: dict[str, Any]) -> None:
    assert given_options(given) == (params, {})


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("top_k", "20", "integer"),
        ("top_k", 20.5, "integer"),
        ("top_k", True, "integer"),
        ("num_ctx", [], "integer"),
        ("temperature", "hot", "float32"),
        ("temperature", False, "float32"),
        ("stop", 3, "array"),
        ("stop", ["a", 3], "array"),
        ("num_gpu", "all", "integer"),
    ],
)
def test_another_type_is_refused_in_ollamas_words(name: str, value: object, kind: str) -> None:
    with pytest.raises(MoeinfError) as caught:
        given_options({name: value})
    assert str(caught.value) == f'option "{name}" must be of type {kind}'


@pytest.mark.parametrize(
    ("given", "params"),
    [
        ({"num_predict": -2}, {"num_predict": -2}),
        ({"num_predict": -77}, {"num_predict": -2}),
        ({"num_predict": 0}, {"num_predict": -1}),
        ({"num_thread": 0, "num_ctx": 0, "num_batch": 0}, {}),
        ({"seed": -5}, {"seed": -5}),
        ({"seed": -1}, {"seed": -1}),
        ({"seed": 2**70}, {"seed": 2**70}),
        ({"top_k": 0}, {"top_k": 0}),
        ({"top_k": -40}, {"top_k": -1}),
        ({"top_p": 0}, {"top_p": 0}),
        ({"top_p": 2}, {"top_p": 1}),
        ({"top_p": -0.5}, {"top_p": 0}),
        ({"min_p": 1.5}, {"min_p": 1}),
        ({"temperature": 1e39}, {"temperature": 1e4}),
        ({"repeat_last_n": -1}, {"repeat_last_n": -1}),
        ({"repeat_last_n": -9}, {"repeat_last_n": -1}),
        ({"repeat_penalty": 0}, {"repeat_penalty": 1.0}),
        ({"repeat_penalty": -1.5}, {"repeat_penalty": 1.0}),
        ({"repeat_penalty": 1e9}, {"repeat_penalty": 1e3}),
        ({"presence_penalty": -1e9}, {"presence_penalty": -1e3, "windowed_penalties": True}),
        ({"frequency_penalty": 1e9}, {"frequency_penalty": 1e3, "windowed_penalties": True}),
        ({"typical_p": 1.7}, {"typical_p": 1}),
        ({"typical_p": 0.7}, {"typical_p": 0.7}),
    ],
)
def test_a_number_that_ollama_takes_means_what_it_means_there(given: dict[str, Any], params: dict[str, Any]) -> None:
    assert given_options(given) == (params, {})


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": -0.1},
        {"num_ctx": -1},
        {"repetition_penalty": 0},
        {"min_tokens": -1},
        {"temperature": float("inf")},
        {"top_p": float("nan")},
    ],
)
def test_what_is_out_of_range_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(MoeinfError):
        given_options(given)


def test_num_gpu_is_the_cpu_or_left_to_us() -> None:
    assert given_options({"num_gpu": 0}) == ({}, {"device": "cpu"})
    assert given_options({"num_gpu": -1}) == ({}, {"device": "auto"})
    assert given_options({"num_gpu": 12}) == ({}, {"device": "auto"})


def test_options_without_a_meaning_are_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="moeinf.server"):
        assert given_options({"mirostat": 1, "use\nmmap": True}) == ({}, {})
    assert caplog.messages == [r"options without a meaning here: 'mirostat', 'use\nmmap'"]


def test_older_clients_call_the_model_a_name() -> None:
    assert NamedRequest(name="a").named == NamedRequest(model="a").named == "a"
    with pytest.raises(MoeinfError, match="model is required"):
        _ = NamedRequest(model="").named
