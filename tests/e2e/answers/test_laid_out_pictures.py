"""Pictures whose soft tokens have others between them, from a pulled checkpoint to answers."""

from __future__ import annotations

import json
import shutil
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

PUBLISHED = Path(__file__).parents[2] / "support" / "published"
QUESTION = "What is this?"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    """Of a family whose pictures have a token behind each row."""
    return seeing_model(tmp_path_factory.mktemp("rows"), "mistral4")


@pytest.fixture(scope="module")
def rows(stored: StoredModel) -> Iterator[Model]:
    with Model(stored, RuntimeConfig.of(device="cpu", context=512)) as opened:
        yield opened


@pytest.fixture(scope="module")
def tiles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """Of a family that sees tiles of 16 pixels, which have four tokens each."""
    stored = seeing_model(tmp_path_factory.mktemp("tiles"), "llama4")
    with Model(stored, RuntimeConfig.of(device="cpu", context=512)) as opened:
        yield opened


def marks(model: Model, ids: list[int]) -> str:
    """S for a soft token, and the letters of tokens around these."""
    letters = {
        "[IMG_BREAK]": "B",
        "[IMG_END]": "E",
        "<|START_OF_IMG|>": "(",
        "<|IMG_LINE_BREAK|>": "x",
        "<|END_OF_IMG|>": ")",
        "<|image_start|>": "(",
        "<|tile_x_separator|>": "x",
        "<|tile_y_separator|>": "y",
        "<|image|>": "w",
        "<|image_end|>": ")",
        "<im_start>": "(",
        "<im_end>": ")",
        "<patch_start>": "[",
        "<patch_end>": "]",
        "<patch_newline>": "n",
        "]<]start of image[>[": "(",
        "]<]end of image[>[": ")",
    }
    named = {model.tokenizer.token_id(token): letter for token, letter in letters.items()}
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


def test_tiles_are_told_apart_and_the_whole_comes_last(tiles: Model) -> None:
    def seen(*pictures: bytes) -> str:
        return marks(tiles, tiles.encode(asking(QUESTION, *pictures)))

    assert seen(png(1, 16, 12)) == "(wSSSS)"
    assert seen(png(1, 30, 40)) == "(SSSSxSSSSxSSSSySSSSxSSSSxSSSSywSSSS)"
    assert seen(png(1, 16, 40), png(2, 9, 9)) == "(SSSSxSSSSxSSSSywSSSS)(wSSSS)"


def test_tiles_change_the_answer_and_are_bounded(tiles: Model) -> None:
    def answer(*pictures: bytes) -> list[int]:
        params = tiles.params(temperature=20.0, seed=3, num_predict=8)
        return tiles.generate(asking(QUESTION, *pictures), params).token_ids

    assert answer(png(1, 30, 40)) == answer(png(1, 30, 40))
    assert len({tuple(answer(png(seed, 30, 40))) for seed in (1, 2, 3)}) > 1
    ids = tiles.encode(asking(QUESTION, png(1, 300, 400)))
    assert sum(each < 0 for each in ids) == 7 * 4, "no more than six tiles, and the whole"


def test_windows_are_bracketed_and_the_whole_comes_last(tmp_path: Path) -> None:
    with Model(seeing_model(tmp_path, "step3p7"), RuntimeConfig.of(device="cpu", context=512)) as model:
        ids = model.encode(asking(QUESTION, png(1, 40, 50), png(2, 64, 96)))
        whole = f"({'S' * 16})"
        row = "[SSSS]" * 3
        assert marks(model, ids) == f"{whole}{row}n{row}{whole}"
        assert model.generate(asking(QUESTION, png(1)), model.params(num_predict=2)).token_ids


def test_tiles_end_with_a_token_and_the_whole_comes_last(tmp_path: Path) -> None:
    with Model(seeing_model(tmp_path, "cohere2_vision"), RuntimeConfig.of(device="cpu", context=512)) as model:
        ids = model.encode(asking(QUESTION, png(1, 16, 12), png(2, 30, 40)))
        assert marks(model, ids) == f"(SSSSx)({'SSSSx' * 7})"
        assert model.generate(asking(QUESTION, png(1)), model.params(num_predict=2)).token_ids


def test_a_published_template_places_pictures(tmp_path: Path) -> None:
    source = write_seeing(tmp_path / "source", "minimax_m3_vl")
    shutil.copy(PUBLISHED / "minimax-m3" / "chat_template.jinja", source)
    stored = pull(str(source), PullOptions(), home=tmp_path / "home")
    with Model(stored, RuntimeConfig.of(device="cpu", context=1024)) as model:
        ids = model.encode(asking(QUESTION, png(1, 8, 24), png(2, 16, 16)))
        assert marks(model, ids) == f"({'S' * 5 * 13})({'S' * 7 * 7})", "both made larger, to 3136 pixels"
        assert model.generate(asking(QUESTION, png(1)), model.params(num_predict=2)).token_ids


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
