"""A layer of the model's own guesses at tokens: no answer changes, and what it is sure of is taken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine import opening
from moeinf.engine.completion import Completion
from moeinf.engine.model import Model
from moeinf.errors import UsageError
from moeinf.pull.mtp_layer import ensure_mtp
from moeinf.pull.pull import pull
from moeinf.sampling.speculation.drafts import NOTHING, Guess
from moeinf.store.library import Library, StoredModel
from tests.support.checkpoints import write_checkpoint
from tests.support.configs.deepseek_v3 import DEEPSEEK_V3
from tests.support.configs.glm4_moe import GLM4
from tests.support.configs.qwen3_next import NEXT
from tests.support.gguf_files import write_gguf
from tests.support.mtp_models import agreeing, letters, write_file, write_model

CONFIGS = {config["model_type"]: config for config in (NEXT, GLM4, DEEPSEEK_V3)}
PROMPT = "w5 w17 w3 w88 w41 w8"


class Silent:
    """Guesses nothing, in place of what looks for repetitions."""

    kind: str | None = None

    def draft(self, tokens: Sequence[int], most: int) -> Guess:
        return NOTHING

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _no_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "lookup", lambda sequence: Silent())


def stored(folder: Path, config: dict[str, Any], wrong: float = 0.0) -> StoredModel:
    return pull(str(write_model(folder / "source", config, wrong)), home=folder / "home")


def answered(model: StoredModel, speculate: str, prompt: str = PROMPT, **options: Any) -> Completion:
    """The second answer, of a prompt that begins as the first one."""
    config = RuntimeConfig.of(device="cpu", threads=2, speculate=speculate, **options)
    with Model(model, config) as opened:
        params = opened.params(num_predict=40, min_tokens=40, temperature=0.0)
        made = [opened.generate(each, params, raw=True) for each in (prompt[: len(prompt) // 2].rstrip(), prompt)]
        opened.tier.check_integrity()
    return made[1]


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_layer_that_is_right_has_its_guesses_taken(name: str, tmp_path: Path) -> None:
    model = stored(tmp_path, CONFIGS[name])
    library = Library(tmp_path / "home")
    with pytest.raises(UsageError, match="no layer that guesses is ready"):
        answered(model, "always", draft="mtp")
    layer = ensure_mtp(model, library)
    assert layer.name == "source:latest-mtp" and ensure_mtp(model, library) == layer
    plain, found = answered(model, "off"), answered(model, "always", draft="mtp", draft_max=3)
    assert found.token_ids == plain.token_ids and len(found.token_ids) == 40
    drafts = found.stats.drafts
    assert drafts.drafted > 20 and drafts.accepted > 0.9 * drafts.drafted  # it does not know of min_tokens
    with pytest.raises(UsageError, match="guesses tokens for another model"):
        answered(layer, "off")


def test_a_layer_that_is_often_wrong_changes_no_answer(tmp_path: Path) -> None:
    model = stored(tmp_path, NEXT, wrong=0.01)
    ensure_mtp(model, Library(tmp_path / "home"))
    plain = answered(model, "off")
    for speculate, options in (("auto", {}), ("always", {"expert_cache": "30%"}), ("always", {})):
        found = answered(model, speculate, draft="mtp", **options)
        assert found.token_ids == plain.token_ids
    assert 0 < found.stats.drafts.accepted < found.stats.drafts.drafted


def test_another_state_of_the_model_has_a_layer_of_its_own(tmp_path: Path) -> None:
    library, first = Library(tmp_path / "home"), stored(tmp_path, GLM4)
    layer = ensure_mtp(first, library)
    write_model(tmp_path / "source", GLM4, wrong=0.5)
    second = pull(str(tmp_path / "source"), home=tmp_path / "home")
    assert second.id != first.id
    assert ensure_mtp(second, library).id != layer.id
    assert [each.name for each in library.list()].count("source:latest-mtp") == 1
    other = library.copy("source", "other:v1")
    library.remove("source")
    assert ensure_mtp(other, library).name == "other:v1-mtp"
    assert library.find("other").name == "other:v1", "a layer is no other model of the name"
    library.remove("other")
    assert library.list() == [], "the layer goes with its model"


def test_what_has_no_such_layer_or_one_that_is_not_run_is_told(tmp_path: Path) -> None:
    library = Library(tmp_path / "home")
    without = pull(str(write_checkpoint(tmp_path / "without", config=GLM4)), home=tmp_path / "home")
    with pytest.raises(UsageError, match="without:latest has no layer that guesses tokens"):
        ensure_mtp(without, library)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_the_layer_of_a_gguf_file_is_used_where_it_lies(name: str, tmp_path: Path) -> None:
    path = write_file(tmp_path / "m.gguf", CONFIGS[name], wrong=0.01)
    model, library = pull(str(path), home=tmp_path / "home"), Library(tmp_path / "home")
    layer = ensure_mtp(model, library)
    assert layer.manifest.in_place is not None and ensure_mtp(model, library) == layer
    assert pull(str(path), home=tmp_path / "home").id == model.id, "the file is still that of the model"
    plain, found = answered(model, "off", "abcd"), answered(model, "always", "abcd", draft="mtp")
    assert found.token_ids == plain.token_ids
    of_checkpoint = stored(tmp_path, CONFIGS[name], wrong=0.01)
    ensure_mtp(of_checkpoint, library)
    same = answered(of_checkpoint, "always", " ".join(f"w{ord(letter) - 33}" for letter in "abcd"), draft="mtp")
    assert (same.token_ids, same.stats.drafts) == (found.token_ids, found.stats.drafts)
    assert 0 < found.stats.drafts.accepted < found.stats.drafts.drafted


def test_a_gguf_file_without_such_a_layer_is_told(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", GLM4, agreeing(GLM4)[0], metadata=letters())[0]
    with pytest.raises(UsageError, match="has no layer that guesses tokens"):
        ensure_mtp(pull(str(path), home=tmp_path / "home"), Library(tmp_path / "home"))
