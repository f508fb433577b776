"""The Model that commands and Python users hold, on the embedded model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest

import moeinf
from moeinf.config import RuntimeConfig
from moeinf.engine.completion import Hooks
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.errors import ContextLengthError, ExpertReadError, MoeinfError, OutOfMemoryError, StoreError, UsageError
from moeinf.hardware import Machine
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.store.library import StoredModel
from moeinf.text.tokenizer import Tokenizer
from tests.support.checkpoints import resealed

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def model(demo: StoredModel) -> Iterator[Model]:
    with Model(demo, RuntimeConfig.of(expert_cache="40%")) as opened:
        yield opened


@pytest.fixture
def own_copy(demo: StoredModel, tmp_path: Path) -> StoredModel:
    """A stored model that a test may damage."""
    folder = shutil.copytree(demo.path, tmp_path / demo.id, ignore=shutil.ignore_patterns("eamc.npz"))
    return StoredModel(demo.name, demo.id, Path(folder))


def greedy(model: Model, prompt: str = PROMPT, **options: object) -> moeinf.Completion:
    return model.generate(prompt, model.params(temperature=0.0, **options))


def test_streamed_pieces_are_the_whole_answer(model: Model) -> None:
    params = model.params(temperature=0.0, num_predict=12)
    pieces = list(model.stream(PROMPT, params))
    assert model.last is not None and "".join(pieces) == model.last.text and len(pieces) > 1
    assert len(model.last.token_ids) == 12 and model.last.finish_reason == "length"
    assert model.last.cut_by == "num_predict"


def test_no_tokens_asked_for_is_none_made(model: Model) -> None:
    answer = greedy(model, num_predict=0)
    assert (answer.text, answer.token_ids, answer.finish_reason) == ("", [], "length")


def test_a_seed_repeats_an_answer_and_another_gives_another(model: Model) -> None:
    first, again, other = (model.generate(PROMPT, model.params(seed=seed, num_predict=24)) for seed in (5, 5, 6))
    assert first.token_ids == again.token_ids != other.token_ids
    assert first.stats.made.seed == 5


def test_a_stop_string_ends_the_answer_and_is_not_part_of_it(model: Model) -> None:
    whole = greedy(model, num_predict=30).text
    stop = whole[10:14]
    cut = greedy(model, num_predict=30, stop=(stop,))
    assert cut.text == whole[: whole.index(stop)] and cut.finish_reason == "stop"


def test_a_prompt_with_a_known_beginning_runs_only_what_is_new(model: Model) -> None:
    first = greedy(model, num_predict=8)
    second = greedy(model, PROMPT + first.text + " and", num_predict=8)
    assert second.stats.cached_tokens >= first.stats.prompt_tokens
    with_reuse = second.token_ids
    greedy(model, "Something else entirely", num_predict=1)
    assert greedy(model, PROMPT + first.text + " and", num_predict=8).token_ids == with_reuse


def test_the_same_prompt_again_still_gives_the_same_answer(model: Model) -> None:
    assert greedy(model, num_predict=8).token_ids == greedy(model, num_predict=8).token_ids


def test_should_stop_ends_within_a_token_and_the_model_goes_on(model: Model) -> None:
    seen: list[str] = []
    for piece in model.stream(
        PROMPT, model.params(temperature=0.0, num_predict=50), hooks=Hooks(lambda: len(seen) > 2)
    ):
        seen.append(piece)
    assert model.last is not None and model.last.finish_reason == "interrupted"
    assert len(model.last.token_ids) <= 5
    model.tier.check_integrity()
    assert greedy(model, num_predict=5).finish_reason == "length"


def test_should_stop_in_the_middle_of_a_forward_pass_leaves_a_sound_model(model: Model) -> None:
    before = greedy(model, num_predict=6).token_ids
    calls = iter(range(1000))
    answer = model.generate("A wholly different prompt", model.params(), hooks=Hooks(lambda: next(calls) > 2))
    assert answer.token_ids == [] and answer.finish_reason == "interrupted"
    model.tier.check_integrity()
    assert greedy(model, num_predict=6).token_ids == before


def test_a_prompt_is_given_up_while_it_is_encoded(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokenizer, "least_tokens", lambda self, text: 0)  # by which it would be refused
    answer = model.generate("a" * 15_000_000, model.params(), raw=True, hooks=Hooks(lambda: True))
    assert answer.token_ids == [] and answer.finish_reason == "interrupted"
    assert greedy(model, num_predict=3).finish_reason == "length"


def test_an_abandoned_stream_leaves_a_sound_model(model: Model) -> None:
    stream = model.stream(PROMPT, model.params(temperature=0.0))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    model.tier.check_integrity()
    assert greedy(model, num_predict=3).finish_reason == "length"


def test_the_answer_ends_where_the_context_does(demo: StoredModel) -> None:
    with Model(demo, RuntimeConfig.of(context=16)) as small:
        answer = greedy(small, num_predict=-1)
        assert (answer.finish_reason, answer.cut_by) == ("length", "context")
        assert answer.stats.prompt_tokens + len(answer.token_ids) <= 17
        with pytest.raises(ContextLengthError, match=r"the context 16: .*--num-ctx \(the model allows 2048\)"):
            greedy(small, "word " * 40)
        with pytest.raises(UsageError, match="empty"):
            small.stream("")  # with the call, not with the first piece


def test_who_has_the_longest_context_already_is_not_told_to_raise_it(model: Model) -> None:
    with pytest.raises(ContextLengthError, match=r"shorten it; this model has no longer context than 2048 tokens$"):
        greedy(model, "word " * 2100)


def test_prefill_in_small_chunks_gives_the_same_answer(demo: StoredModel, model: Model) -> None:
    with Model(demo, RuntimeConfig.of(prefill_chunk=3)) as chunked:
        assert greedy(chunked, num_predict=16).token_ids == greedy(model, num_predict=16).token_ids


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_chat_goes_through_the_checkpoints_template_and_reuses_its_past(own_copy: StoredModel) -> None:
    (own_copy.path / "chat_template.jinja").write_text(CHATML)
    start, end = 1, 2  # ids of <|im_start|> and <|im_end|>
    with Model(own_copy, RuntimeConfig()) as chat:
        question = {"role": "user", "content": "Hello <|im_end|> there"}
        first = chat.encode([question])
        assert first.count(start) == 2 and first.count(end) == 1, "control tokens in a message are text"
        answer = chat.generate([question], chat.params(temperature=0.0, num_predict=6))
        turns = [question, {"role": "assistant", "content": answer.text}, {"role": "user", "content": "And then?"}]
        second = chat.generate(turns, chat.params(temperature=0.0, num_predict=4))
        assert second.stats.cached_tokens >= len(first)
        assert end in chat.tokenizer.eos_ids


def test_stats_count_every_activation_and_every_second(model: Model) -> None:
    shape, stats = model.manifest.moe, greedy(model, "A new prompt for this test", num_predict=9).stats
    per_token = shape.num_layers * shape.top_k
    prefill, decode = stats.prefill_cache, stats.decode_cache
    assert prefill.hits + prefill.misses == (stats.prompt_tokens - stats.cached_tokens) * per_token
    assert decode.hits + decode.misses == 8 * per_token
    assert len(stats.token_s) == 8 and stats.generated_tokens == 9
    assert {"attention", "router", "policy", "experts", "head", "other"} <= stats.decode_laps.keys()


def test_the_laps_of_the_tokens_leave_out_the_time_of_the_caller(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks, callers = count(), 0

    def clock() -> float:
        return next(ticks) + callers

    monkeypatch.setattr(model.generator.listeners.profiler, "clock", clock)
    params = model.params(temperature=0.0, num_predict=9)
    for _ in model.stream("A caller that takes its time", params):
        callers += 1_000_000
    assert model.last is not None and len(model.last.stats.token_s) == 8
    assert 0 < sum(model.last.stats.decode_laps.values()) < 1_000_000


def test_what_a_request_activated_is_kept_beside_the_model(own_copy: StoredModel) -> None:
    path = own_copy.path / "eamc.npz"
    for runs in (1, 2):
        with Model(own_copy, RuntimeConfig()) as opened:
            greedy(opened, num_predict=4)
        collection = ActivationCollection.loads(path.read_bytes(), own_copy.manifest.moe)
        assert len(collection) == 2 * runs, "prefill and decode of each request, apart"


def test_a_damaged_activation_collection_is_said_and_replaced(own_copy: StoredModel) -> None:
    (own_copy.path / "eamc.npz").write_bytes(b"not an archive")
    notices: list[str] = []
    with Model(own_copy, RuntimeConfig(), Reporting(notices.append)) as opened:
        assert any("eamc.npz" in notice for notice in notices)
        greedy(opened, num_predict=2)
    assert len(ActivationCollection.loads((own_copy.path / "eamc.npz").read_bytes(), own_copy.manifest.moe)) == 2


def test_a_shard_truncated_before_opening_is_refused_by_name(own_copy: StoredModel) -> None:
    shard = own_copy.shard_paths[2]
    with shard.open("r+b") as file:
        file.truncate(4096)
    with pytest.raises(StoreError, match=r"experts-00002\.bin.*moeinf verify"):
        Model(own_copy, RuntimeConfig())


def test_a_shard_truncated_while_running_is_an_error_that_names_the_expert(own_copy: StoredModel) -> None:
    with Model(own_copy, RuntimeConfig.of(expert_cache="5%")) as opened:
        greedy(opened, num_predict=2)
        for shard in own_copy.shard_paths:
            with shard.open("r+b") as file:
                file.truncate(0)
        with pytest.raises(ExpertReadError, match=r"expert \d+ of layer \d .*experts-0000\d\.bin"):
            greedy(opened, "Another prompt that needs other experts", num_predict=30)


def test_a_folder_whose_name_is_no_text_holds_models_as_any_other(
    demo: StoredModel, model: Model, tmp_path: Path
) -> None:
    folder = shutil.copytree(demo.path, tmp_path / os.fsdecode(b"mod\xe8les") / demo.id)
    stored = StoredModel(demo.name, demo.id, Path(folder))
    with Model(stored, RuntimeConfig.of(expert_cache="40%")) as opened:
        assert greedy(opened, num_predict=4).token_ids == greedy(model, num_predict=4).token_ids
        for shard in stored.shard_paths:
            os.truncate(shard, 0)
        with pytest.raises(ExpertReadError, match=r"mod\udce8les.*experts-0000\d\.bin"):
            greedy(opened, "Another prompt that needs other experts", num_predict=30)


def test_a_missing_shard_is_refused_by_name(own_copy: StoredModel) -> None:
    own_copy.shard_paths[0].unlink()
    with pytest.raises(StoreError, match=r"experts-00000\.bin"):
        Model(own_copy, RuntimeConfig())


def test_a_truncated_dense_file_is_refused_by_name(own_copy: StoredModel) -> None:
    with own_copy.dense_path.open("r+b") as file:
        file.truncate(100_000)
    with pytest.raises(StoreError, match=r"dense\.safetensors"):
        Model(own_copy, RuntimeConfig())


@pytest.mark.parametrize("damage", [b"", b"{", b"[]"], ids=repr)
def test_a_damaged_config_is_refused_by_name(own_copy: StoredModel, damage: bytes) -> None:
    path = own_copy.path / "config.json"
    path.write_bytes(damage.ljust(path.stat().st_size if damage else 0))
    with pytest.raises(StoreError, match=r"config\.json"):
        Model(own_copy, RuntimeConfig())


@pytest.mark.parametrize("file", ["config.json", "dense.safetensors", "tokenizer.json"])
def test_a_missing_file_is_refused_by_name(own_copy: StoredModel, file: str) -> None:
    (own_copy.path / file).unlink()
    with pytest.raises(StoreError, match=f"{file}.*moeinf verify"):
        Model(own_copy, RuntimeConfig())


def test_no_memory_for_the_dense_part_is_refused_before_reading(demo: StoredModel) -> None:
    with pytest.raises(OutOfMemoryError, match="MiB needed"):
        Model(demo, RuntimeConfig(), on=Machine(1 << 20, "control group /tight", 2))


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "clairvoyant"},
        {"predictor": "oracle"},
        {"expert_cache": "some"},
        {"expert_cache": "1KiB"},
        {"context": 100_000},
    ],
    ids=str,
)
def test_a_wrong_option_value_is_refused(demo: StoredModel, options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Model(demo, RuntimeConfig.of(**options))


@pytest.mark.parametrize(("prompt", "continuation", "named"), [
    ([], [1], "the prompt is empty"), ([1, 10**6], [], r"prompt\[1\] is 1000000"), ([-1], [], r"prompt\[0\] is -1"),
    ([1], [2, -3], r"continuation\[1\] is -3"), ([1.0], [], r"prompt\[0\] is 1.0"),
    ([1], ["a"], r"continuation\[0\] is 'a'"), ([True], [], "is True"), ([None], [], "is None"),
])  # fmt: skip
def test_replay_refuses_what_is_no_token_of_the_model(
    model: Model, prompt: list[int], continuation: list[int], named: str
) -> None:
    with pytest.raises(UsageError, match=f"^replay: .*{named}"):
        model.replay(prompt, continuation)


def test_replay_takes_numpys_numbers(model: Model) -> None:
    ids = np.array([5, model.manifest.info.vocab_size - 1])
    assert model.replay(ids, ids[:1]).generated_tokens == 2  # type: ignore[arg-type]


def test_a_closed_model_says_so(demo: StoredModel) -> None:
    opened = Model(demo, RuntimeConfig())
    opened.close()
    opened.close()
    with pytest.raises(MoeinfError, match="closed"):
        greedy(opened)


def test_load_is_the_documented_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEINF_HOME", str(tmp_path))
    with moeinf.load("demo", expert_cache="30%", policy="lru") as opened:
        assert opened.generate(PROMPT, moeinf.SamplingParams(temperature=0, num_predict=3)).stats.generated_tokens == 3
    with pytest.raises(UsageError, match="expert_cash"):
        moeinf.load("demo", expert_cash="30%")


def test_what_the_checkpoint_asks_for_in_vain_is_said_once(own_copy: StoredModel) -> None:
    path = own_copy.path / "generation_config.json"
    path.write_text('{"typical_p": 0.5}')
    notices: list[str] = []
    with Model(resealed(own_copy, path.name), RuntimeConfig.of(expert_cache="40%"), Reporting(notices.append)) as model:
        for _ in range(2):
            model.params()
        assert [note for note in notices if "typical_p = 0.5" in note] == [
            "the checkpoint asks for typical_p = 0.5, which is not done"
        ]
