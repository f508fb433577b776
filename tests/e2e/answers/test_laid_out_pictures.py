"""Pictures whose soft tokens have others between them, from a pulled checkpoint to answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.model import Model
from moeinf.errors import UsageError
from moeinf.pull.pull import pull
from moeinf.store.library import StoredModel
from tests.support.seeing_models import asking, png, seeing_model, write_seeing

QUESTION = "What is this?"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    """Of a family whose pictures have a token behind each row."""
    return seeing_model(tmp_path_factory.mktemp("rows"), "mistral4")


@pytest.fixture(scope="module")
def rows(stored: StoredModel) -> Iterator[Model]:
    with Model(stored, RuntimeConfig.of(device="cpu", context=512)) as opened:
        yield opened


def marks(model: Model, ids: list[int]) -> str:
    """S for a soft token, and the letters of tokens around these."""
    named = {model.tokenizer.token_id("[IMG_BREAK]"): "B", model.tokenizer.token_id("[IMG_END]"): "E"}
    return "".join("S" if each < 0 else named.get(each, "") for each in ids)


def test_each_row_ends_with_a_token(rows: Model) -> None:
    assert marks(rows, rows.encode(asking(QUESTION, png(1, 20, 30)))) == "SSSSBSSSSBSSSSE"
    two = rows.encode(asking(QUESTION, png(1, 10, 16), png(2, 8, 24)))
    assert marks(rows, two) == "SSBSSESSSE"
    raw = rows.encode(asking(QUESTION, png(1, 10, 16)), raw=True)
    assert marks(rows, raw[:6]) == "SSBSSE" and raw[6:] == rows.encode(QUESTION, raw=True)


def test_the_answer_goes_by_the_picture_in_any_chunks(rows: Model, stored: StoredModel) -> None:
    def answer(model: Model, *pictures: bytes) -> list[int]:
        return model.generate(asking(QUESTION, *pictures), model.params(temperature=0.0, num_predict=8)).token_ids

    pictures = png(1, 48, 30), png(2, 20, 48)
    whole = answer(rows, *pictures)
    assert whole != answer(rows, *pictures[::-1])
    config = RuntimeConfig.of(device="cpu", context=512, prefill_chunk=7)
    with Model(stored, config) as other:
        assert answer(other, *pictures) == whole


def test_a_tokenizer_without_a_token_leaves_the_text(tmp_path: Path) -> None:
    source = write_seeing(tmp_path / "source", "mistral4")
    text = (source / "tokenizer.json").read_text()
    (source / "tokenizer.json").write_text(text.replace("[IMG_BREAK]", "[OTHER]"))
    stored = pull(str(source), PullOptions(), home=tmp_path / "home")
    with Model(stored, RuntimeConfig.of(device="cpu", context=512)) as model:
        assert model.encode([{"role": "user", "content": QUESTION}])
        with pytest.raises(UsageError, match=r"takes text alone: its tokenizer has no token '\[IMG_BREAK\]'"):
            model.encode(asking(QUESTION, png(1)))


def test_a_tower_of_another_kind_leaves_the_text(tmp_path: Path) -> None:
    source = write_seeing(tmp_path / "source", "mistral4")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"vision_feature_layer": -2}))
    stored = pull(str(source), PullOptions(), home=tmp_path / "home")
    assert stored.manifest.vision is None
    refused = pytest.raises(UsageError, match=r"takes text alone: .*vision_feature_layer = -2")
    with Model(stored, RuntimeConfig.of(device="cpu", context=512)) as model, refused:
        model.encode(asking(QUESTION, png(1)))
