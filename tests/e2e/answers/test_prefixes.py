"""Prompts that begin as earlier ones: computed once, and answered as if nothing had come between."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.completion import GenerationStats
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.errors import UsageError
from moeinf.hardware import Machine
from moeinf.pull.pull import pull
from moeinf.store.library import Library, StoredModel
from moeinf.types import Float32Array
from tests.support.checkpoints import random_tensors, scaled, write_checkpoint
from tests.support.gpu.emulated_gpu import emulated
from tests.support.tiny_models import all_configs

STORY = "Once upon a time, in a village by the sea, there was a fisherman who said to his wife: " * 3
OTHER = "The quick brown fox jumps over the lazy dog, and the dog sleeps in the sun all day long. " * 3
FAMILIES = ["qwen3_moe", "deepseek_v2", "qwen3_next", "qwen3_5_moe", "qwen4_exp", "gpt_oss", "deepseek_v4", "glm5_next"]
ON = Machine(1 << 36, "test", 1)


class Logits:
    """Chooses the likeliest token, and keeps what it was chosen by."""

    def __init__(self) -> None:
        self.seen: list[Float32Array] = []

    def sample(self, logits: Float32Array, history: Sequence[int]) -> int:
        self.seen.append(logits.copy())
        return int(logits.argmax())


def answered(model: Model, prompt: Sequence[int], max_tokens: int = 1) -> tuple[list[Float32Array], GenerationStats]:
    """The logits of each token of an answer."""
    chooser, stats = Logits(), GenerationStats()
    for _ in model.generator.tokens(list(prompt), chooser, max_tokens, stats):
        pass
    model.generator.sequences.last.settle()
    return chooser.seen, stats


def random_model(config: dict[str, Any], folder: Path, **options: Any) -> StoredModel:
    weights = scaled(random_tensors(config, layout=-1), 0.1)
    source = write_checkpoint(folder / "source", weights, config | {"torch_dtype": "bfloat16"})
    return pull(str(source), PullOptions(**options), home=folder / "home")


def opened(stored: StoredModel, **options: Any) -> Model:
    return Model(stored, RuntimeConfig.of(threads=1, prefill_chunk=32, **options), on=ON)


def ids(length: int, seed: int, vocabulary: int = 97) -> list[int]:
    numbers: list[int] = np.random.default_rng(seed).integers(3, vocabulary, length).tolist()
    return numbers


@pytest.fixture
def own(demo: StoredModel, tmp_path: Path) -> StoredModel:
    """A model in a store of its own."""
    folder = shutil.copytree(demo.path, tmp_path / "models" / demo.id, ignore=shutil.ignore_patterns("eamc.npz"))
    return StoredModel(demo.name, demo.id, Path(folder))


def turns(model: Model, prompts: Sequence[str], between: Sequence[str] = ()) -> tuple[list[list[int]], str]:
    """The tokens of a conversation that says these prompts, with other prompts between; where its past came from."""
    text, answers = "", list[list[int]]()
    params = model.params(temperature=0.0, num_predict=12, stop=())
    for prompt in prompts:
        answer = model.generate(text + prompt, params, raw=True)
        answers.append(answer.token_ids)
        text += prompt + answer.text
        for other in between:
            model.generate(other, params, raw=True)
    return answers, answer.stats.cached_from


def test_two_conversations_by_turns_are_answered_as_each_alone(own: StoredModel) -> None:
    prompts = [STORY, " And then?", " Who was it?"]
    with opened(own) as alone:
        wanted, place = turns(alone, prompts)
        assert place == "live"
    with opened(own, prefix_memory="64MiB") as model:
        assert turns(model, prompts, [OTHER, OTHER + " So?"]) == (wanted, "memory")
        assert model.last is not None and model.last.stats.cached_from == "memory"


def test_a_conversation_goes_on_after_a_restart(own: StoredModel, tmp_path: Path) -> None:
    prompts = [STORY, " And then?"]
    with opened(own) as alone:
        wanted, _ = turns(alone, prompts)
    said = list[str]()
    for first in (True, False):
        config = RuntimeConfig.of(threads=1, prefix_disk="64MiB")
        with Model(own, config, Reporting(said.append), on=ON) as model:
            assert turns(model, prompts if not first else prompts[:1])[0] == wanted[: 1 if first else 2]
            last = model.last
            assert last is not None and (last.stats.cached_from, last.stats.cached_tokens > 0) in {
                ("", False) if first else ("live", True)
            }
    with opened(own, prefix_disk="64MiB") as model:
        answer = model.generate(STORY + " Something new.", model.params(temperature=0.0, num_predict=1), raw=True)
        assert answer.stats.cached_from == "disk" and answer.stats.cached_tokens > 60
    assert said == [] and (tmp_path / "prefixes" / own.id).is_dir()


def test_nothing_is_kept_unasked(own: StoredModel, tmp_path: Path) -> None:
    with opened(own) as model:
        for prompt in (STORY, OTHER, STORY):
            answer = model.generate(prompt, model.params(temperature=0.0, num_predict=1), raw=True)
            assert answer.stats.cached_tokens <= 1
    assert not (tmp_path / "prefixes").exists()


def test_another_context_and_model_share_nothing_wrong(own: StoredModel) -> None:
    """What does not rotate otherwise with the context is shared between contexts; what was said for one, for all."""
    for context in (512, 1024):
        with opened(own, prefix_disk="64MiB", context=context) as model:
            answer = model.generate(STORY, model.params(temperature=0.0, num_predict=1), raw=True)
            assert answer.stats.cached_from == ("" if context == 512 else "disk")


def test_what_was_kept_in_another_format_is_not_taken(own: StoredModel) -> None:
    found = list[str]()
    for kept in ("q8_0", "auto", "q8_0"):
        with opened(own, prefix_disk="64MiB", kv_cache=kept) as model:
            answer = model.generate(STORY, model.params(temperature=0.0, num_predict=8), raw=True)
            found.append(answer.stats.cached_from)
    assert found == ["", "", "disk"]


def test_rm_takes_the_prefixes_along(tmp_path: Path) -> None:
    stored = pull("demo", PullOptions(), home=tmp_path)
    with opened(stored, prefix_disk="64MiB") as model:
        model.generate(STORY, model.params(temperature=0.0, num_predict=1), raw=True)
    assert list((tmp_path / "prefixes").rglob("*.rows"))
    Library(tmp_path).remove("demo")
    assert not list((tmp_path / "prefixes").iterdir())


def test_options_that_mean_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="--prefix-memory 0 leaves none"):
        RuntimeConfig.of(prefix_memory="0", prefix_disk="1GB")


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_logits_are_those_of_a_fresh_computation_bit_for_bit(name: str, place: str, tmp_path: Path) -> None:
    config = next(each for each in all_configs().values() if each["model_type"] == name)
    stored = random_model(config, tmp_path)
    first, second = ids(100, 1), [*ids(100, 1), *ids(20, 2)]
    with opened(stored, prefix_memory="0") as plain:
        wanted, _ = answered(plain, second, 6)
    disk = "64MiB" if place == "disk" else "0"
    with opened(stored, prefix_memory="64MiB", prefix_disk=disk) as model:
        answered(model, first)
        answered(model, ids(90, 3))
        if place == "memory":
            found, stats = answered(model, second, 6)
    if place == "disk":
        with opened(stored, prefix_memory="64MiB", prefix_disk=disk) as model:
            found, stats = answered(model, second, 6)
    assert (stats.cached_tokens, stats.cached_from) == (100, place)
    assert len(found) == 6 and all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v2", "qwen3_next", "qwen4_exp"])
def test_a_gpu_takes_back_what_it_gave(name: str, tmp_path: Path) -> None:
    config = next(each for each in all_configs().values() if each["model_type"] == name)
    stored, second = random_model(config, tmp_path), [*ids(80, 1), *ids(20, 2)]
    wanted = dict[str, list[Float32Array]]()
    for memory in ("0", "64MiB"):
        runtime = RuntimeConfig.of(threads=1, prefill_chunk=64, prefix_memory=memory)
        with Model(stored, runtime, on=Machine(1 << 40, "test", 2), gpu=emulated()) as model:
            answered(model, ids(80, 1))
            if memory != "0":
                answered(model, ids(70, 3), 5)
                assert model.generator.sequences.last.tokens[:80] != second[:80]
            wanted[memory], stats = answered(model, second, 4)
            assert (stats.cached_tokens, stats.cached_from) == (80, "live" if memory == "0" else "memory")
    assert all(np.array_equal(one, other) for one, other in zip(*wanted.values(), strict=True))


@pytest.fixture(scope="module", params=["qwen3_next", "qwen3_moe"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same model without prefixes and with them: a recurrent one, and one with weights in q8_0, which every
    instruction set rounds otherwise in a long prompt than in a short one."""
    config = all_configs()[request.param]
    stored = random_model(config, tmp_path_factory.mktemp("pair"), quant="q8_0")
    with opened(stored, prefix_memory="0") as plain, opened(stored, prefix_memory="2MiB") as keeping:
        yield plain, keeping


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 120), st.integers(0, 9)), min_size=2, max_size=8))
def test_tokens_are_those_of_a_model_that_keeps_nothing(pair: Any, wanted: list[tuple[int, int, int]]) -> None:
    """Prompts that begin as one of three texts and go on otherwise, long ones and short ones, each rounded as such."""
    plain, keeping = pair
    for text, length, rest in wanted:
        prompt = [*ids(120, text)[:length], *ids(rest, 7)]
        plain.generator.sequences.last.clear()
        expected, found = answered(plain, prompt)[0], answered(keeping, prompt)[0]
        assert np.array_equal(expected[0], found[0])


@pytest.mark.parametrize("others", [0, 1], ids=["live", "kept"])
def test_a_chat_that_began_short_gives_its_beginning_to_no_long_prompt(others: int, tmp_path: Path) -> None:
    stored = random_model(all_configs()["qwen3_moe"], tmp_path, quant="q8_0")
    first, prompt = ids(30, 1), [*ids(30, 1)[:20], *ids(70, 5)]
    with opened(stored, prefix_memory="0") as plain:
        wanted, _ = answered(plain, prompt, 4)
    with opened(stored, prefix_memory="64MiB") as model:
        said = [int(logits.argmax()) for logits in answered(model, first, 6)[0]]
        _, stats = answered(model, [*first, *said, *ids(60, 2)])
        assert stats.cached_tokens > len(first), "a chat goes on with what it has"
        for _ in range(others):
            answered(model, ids(90, 3))
        found, stats = answered(model, prompt, 4)
    assert stats.cached_tokens == 0
    assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_an_answer_that_nobody_reads_to_its_end_is_settled(demo: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with Model(demo, RuntimeConfig.of(device="cpu", prefix_memory="64MB")) as model:
        pieces = model.pieces(STORY, model.params(temperature=0, num_predict=40), raw=True)
        sequence, settled = model.generator.sequences.last, list[int]()
        monkeypatch.setattr(sequence.prefixes, "settle", lambda tokens: settled.append(len(tokens)))
        next(pieces)
        assert not settled
        pieces.close()
        assert settled == [len(sequence.tokens)] and settled[0] >= len(model.encode(STORY, raw=True))
        assert model.activity is None, "which only a server's page looks at"
