"""Vectors of texts over the APIs of OpenAI and ollama: those of the model's own states, whoever asks beside them."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import ollama
import openai
import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.pull.pull import pull
from moeinf.server.serve import HttpServer
from moeinf.store.library import StoredModel
from tests.support.caller import write_caller
from tests.support.configs.switch_transformers import SWITCH
from tests.support.live_server import live_server
from tests.support.pairs.stored_translators import Stored

TEXTS = ["Once upon a time", "The little dog ran home", "a", "One day a bird sang. " * 20]
FloatArray = Any


@pytest.fixture(scope="module")
def expected(demo: StoredModel) -> list[FloatArray]:
    """The mean of what the head is given of each text's tokens, of length 1."""
    found = []
    with Model(demo, RuntimeConfig.of(device="cpu")) as model:
        for text in TEXTS:
            rows: list[FloatArray] = []
            cache = model.runner.network.new_cache(256)
            cache.on_hidden = lambda start, hidden, rows=rows: rows.append(hidden.copy())
            model.runner.network.forward(model.tokenizer.encode(text), cache)
            mean = np.concatenate(rows).mean(0, dtype=np.float64)
            found.append(mean / np.linalg.norm(mean))
    return found


def embedded(server: HttpServer, texts: Any, **more: Any) -> list[FloatArray]:
    asked = {"model": "demo", "input": texts} | more
    answer = httpx.post(f"{server.url}/v1/embeddings", json=asked, timeout=60)
    assert answer.status_code == 200, answer.text
    return [np.array(each["embedding"], np.float32) for each in answer.json()["data"]]


def completed(server: HttpServer, text: str) -> str:
    asked = {"model": "demo", "prompt": text, "max_tokens": 8, "temperature": 0}
    answer = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=60)
    return str(answer.json()["choices"][0]["text"])


def same(found: Sequence[FloatArray], others: Sequence[FloatArray]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(found, others, strict=True))


def test_vectors_are_the_mean_of_the_models_states(server: HttpServer, expected: list[FloatArray]) -> None:
    found = embedded(server, TEXTS)
    assert np.abs(np.array(found) - np.array(expected)).max() < 1e-6
    assert np.allclose(np.linalg.norm(found, axis=1), 1)
    assert not np.allclose(found[0], found[1], atol=0.1), "texts differ"


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("config.json", {"pooling": "last"}),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}),
        ("1_Pooling/config.json", {"pooling_mode": "lasttoken", "include_prompt": True}),
    ],
)
def test_a_model_may_say_that_its_last_state_is_meant(file: str, said: dict[str, Any], tmp_path: Path) -> None:
    source, text = write_caller(tmp_path / "caller"), "user found"
    says(source / file, said)
    stored, rows = pull(str(source), home=tmp_path / "home"), list[FloatArray]()
    with live_server(stored) as other, Model(stored, RuntimeConfig.of(device="cpu")) as model:
        cache = model.runner.network.new_cache(64)
        cache.on_hidden = lambda start, hidden: rows.append(hidden[-1].copy())
        model.runner.network.forward(model.tokenizer.encode(text), cache)
        answer = httpx.post(f"{other.url}/v1/embeddings", json={"model": "caller", "input": text}, timeout=60)
    found = np.array(answer.json()["data"][0]["embedding"])
    assert np.abs(found - rows[0] / np.linalg.norm(rows[0])).max() < 1e-6


def test_a_way_that_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    source = write_caller(tmp_path / "caller")
    says(source / "1_Pooling/config.json", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True})
    with live_server(pull(str(source), home=tmp_path / "home")) as other:
        answer = httpx.post(f"{other.url}/v1/embeddings", json={"model": "caller", "input": "user"}, timeout=60)
    assert answer.status_code == 400 and "by 'cls_token+mean'" in answer.json()["error"]["message"]


def test_a_further_matrix_behind_the_pooling_is_refused_by_name(tmp_path: Path) -> None:
    source = write_caller(tmp_path / "caller")
    kinds = ("Transformer", "Pooling", "Normalize", "Dense")
    modules = [{"idx": i, "type": f"sentence_transformers.models.{kind}"} for i, kind in enumerate(kinds)]
    (source / "modules.json").write_text(json.dumps(modules))
    with live_server(pull(str(source), home=tmp_path / "home")) as other:
        answer = httpx.post(f"{other.url}/v1/embeddings", json={"model": "caller", "input": "user"}, timeout=60)
    assert answer.status_code == 400 and "by 'mean+Dense'" in answer.json()["error"]["message"]


def says(file: Path, said: dict[str, Any]) -> None:
    """Writes more fields into a file of a checkpoint."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | said))


def test_they_are_the_same_alone_together_and_behind_an_answer_to_the_text(server: HttpServer) -> None:
    together = embedded(server, TEXTS)
    said = [completed(server, text) for text in TEXTS]
    assert same([embedded(server, text)[0] for text in TEXTS], together)
    assert [completed(server, text) for text in TEXTS] == said


def test_they_are_the_same_beside_answers_and_in_chunks(demo: StoredModel, server: HttpServer) -> None:
    wanted, found = embedded(server, TEXTS), dict[int, Any]()
    config = RuntimeConfig.of(device="cpu", prefill_chunk=16)
    with live_server(demo, config=config, parallel=4) as chunked:
        said = [completed(chunked, text) for text in TEXTS]

        def ask(at: int) -> None:
            found[at] = completed(chunked, TEXTS[at // 2]) if at % 2 else embedded(chunked, TEXTS)

        threads = [threading.Thread(target=ask, args=(at,)) for at in range(2 * len(TEXTS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [found[at] for at in sorted(found) if at % 2] == said
    for at in (at for at in found if not at % 2):
        assert np.abs(np.array(found[at]) - np.array(wanted)).max() < 1e-6


def test_forms_of_openais_api(server: HttpServer, demo: StoredModel) -> None:
    with Model(demo, RuntimeConfig.of(device="cpu")) as model:
        ids = [model.tokenizer.encode(text) for text in TEXTS]
    whole = embedded(server, TEXTS)
    assert same(embedded(server, ids), whole) and same(embedded(server, ids[0]), whole[:1])
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        answer = client.embeddings.create(model="demo", input=TEXTS)  # it asks for base64
        assert same([np.array(each.embedding, np.float32) for each in answer.data], whole)
        assert answer.usage.prompt_tokens == sum(map(len, ids)) and [each.index for each in answer.data] == [0, 1, 2, 3]
        short = client.embeddings.create(model="demo", input=TEXTS[0], dimensions=5, encoding_format="float")
    cut = whole[0][:5] / np.linalg.norm(whole[0][:5])
    assert np.allclose(short.data[0].embedding, cut, atol=1e-6)


def test_forms_of_ollamas_api(server: HttpServer) -> None:
    client, whole = ollama.Client(server.url), embedded(server, TEXTS[:2])
    answer = client.embed("demo", TEXTS[:2])
    assert same([np.array(each, np.float32) for each in answer.embeddings], whole)
    assert answer.prompt_eval_count and answer.total_duration
    assert same([np.array(client.embeddings("demo", TEXTS[0]).embedding, np.float32)], whole[:1])
    assert client.embed("demo", "").embeddings == []
    long = "word " * 5000
    assert len(client.embed("demo", long).embeddings) == 1, "its end is cut off"
    with pytest.raises(ollama.ResponseError, match="the prompt has"):
        client.embed("demo", long, truncate=False)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"input": []}, "input is empty"),
    ({"input": ""}, "input[0] is empty"),
    ({"input": ["a", ""]}, "input[1] is empty"),
    ({"input": ["a", 5]}, "input[1] must be a text"),
    ({"input": ["a"] * 2049}, "at most 2048"),
    ({"input": [[4096]]}, "4096 is no token id"),
    ({"input": [[-1]]}, "-1 is no token id"),
    ({"input": "word " * 5000}, "maximum context length is"),
    ({"input": "a", "dimensions": 0}, "dimensions is 0"),
    ({"input": "a", "dimensions": 10_000}, "dimensions is 10000"),
    ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
    ({"input": "a", "normalize": False}, "normalize is not supported"),
]


@pytest.mark.parametrize(("change", "named"), WRONG)
def test_what_cannot_be_is_refused(server: HttpServer, change: dict[str, Any], named: str) -> None:
    answer = httpx.post(f"{server.url}/v1/embeddings", json={"model": "demo"} | change, timeout=60)
    assert answer.status_code == 400 and named in answer.json()["error"]["message"], answer.text


def test_an_encoder_decoder_model_is_refused_by_name(tmp_path: Path) -> None:
    stored = Stored(SWITCH, tmp_path, {"decoder_start_token_id": 0, "eos_token_id": 1}).stored
    with live_server(stored) as server:
        for path, name in (("/v1/embeddings", "input"), ("/api/embed", "input"), ("/api/embeddings", "prompt")):
            answer = httpx.post(f"{server.url}{path}", json={"model": "tiny", name: "w5 w17"}, timeout=60)
            assert answer.status_code == 400 and "tiny makes no embeddings" in answer.text


def test_ranking_is_refused_with_a_reason(server: HttpServer) -> None:
    answer = httpx.post(f"{server.url}/v1/rerank", json={"model": "demo", "query": "a", "documents": ["b"]})
    assert answer.status_code == 400 and "no head that was trained to rank" in answer.json()["error"]["message"]
