"""Models that see, from a pulled checkpoint to answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from moeinf.config import RuntimeConfig
from moeinf.engine.completion import NO_HOOKS, Completion, Hooks, Request
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.errors import ContextLengthError, StoreError, TextError, UsageError
from moeinf.models.layers.vision.vision import Tower
from moeinf.store.library import StoredModel
from tests.support.checkpoints import resealed
from tests.support.gpu.emulated_gpu import opened as on_gpu
from tests.support.seeing_models import FAMILIES, asking, png, seeing_model

PUBLISHED = Path(__file__).parents[2] / "support" / "published"
QUESTION = "What is this? Say it in a few words, and say what stands beside it."


@pytest.fixture(scope="module", params=FAMILIES)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    return seeing_model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def model(stored: StoredModel) -> Iterator[Model]:
    with Model(stored, RuntimeConfig.of(device="cpu", context=512)) as opened:
        yield opened


def answer(model: Model, messages: Any, count: int = 12) -> Completion:
    return model.generate(messages, model.params(temperature=0.0, num_predict=count))


def alone(stored: StoredModel, messages: Any, **options: Any) -> list[int]:
    with Model(stored, RuntimeConfig.of(**{"device": "cpu", "context": 512} | options)) as opened:
        return answer(opened, messages).token_ids


def runs_of_towers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows by one whenever a tower runs."""
    runs = list[Any]()

    def counted(kind: type[Tower]) -> Any:
        rows = kind.rows

        def run(*given: Any) -> Any:
            runs.append(given)
            return rows(*given)

        return run

    for kind in Tower.__subclasses__():
        monkeypatch.setattr(kind, "rows", counted(kind))
    return runs


def test_the_answer_goes_by_the_picture(model: Model) -> None:
    answers = [answer(model, asking(QUESTION, png(seed))) for seed in (1, 2, 3)]
    assert len({tuple(each.token_ids) for each in answers}) > 1
    assert {each.stats.prompt_tokens for each in answers} == {answers[0].stats.prompt_tokens}


def test_the_tokens_are_the_same_for_every_cache_chunk_and_reader(stored: StoredModel) -> None:
    messages = asking(QUESTION, png(1), png(2, 120, 40))
    whole = alone(stored, messages)
    for options in (
        {"expert_cache": "40%"},
        {"prefill_chunk": 7},
        {"prefill_chunk": 16, "expert_cache": "40%", "prefetch": False},
        {"prefill_chunk": 1},
        {"threads": 1, "reader": "pure"},
        {"direct_io": False, "verify_reads": True},
    ):
        assert alone(stored, messages, **options) == whole, options


def test_a_picture_is_not_taken_for_another_one(stored: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = runs_of_towers(monkeypatch)
    first, second = asking(QUESTION, png(1)), asking(QUESTION, png(2))
    wanted = [alone(stored, messages) for messages in (first, second)]
    seen.clear()
    with Model(stored, RuntimeConfig.of(device="cpu", context=512, prefix_memory="64MiB")) as opened:
        one = answer(opened, first)
        assert one.token_ids == wanted[0] and len(seen) == 1
        other = answer(opened, second)
        assert other.token_ids == wanted[1] and len(seen) == 2
        assert other.stats.cached_tokens < 8, "only what stands in front of the picture"
        again = answer(opened, first)
        assert again.token_ids == wanted[0]
        assert again.stats.cached_tokens > 8 and len(seen) == 2, "what was kept of the first one serves again"


def test_a_chat_about_a_picture_goes_on_after_a_restart(stored: StoredModel) -> None:
    said, messages = list[str](), asking(QUESTION * 2, png(4))
    wanted = alone(stored, messages)
    config = RuntimeConfig.of(device="cpu", context=512, prefix_memory="64MiB", prefix_disk="64MiB")
    for cached in (False, True):
        with Model(stored, config, Reporting(said.append)) as opened:
            again = answer(opened, messages)
        assert again.token_ids == wanted and (again.stats.cached_from == "disk") == cached
        # The last token is computed in any case, and of the family with recurrent layers the last turn, too.
        assert not cached or again.stats.cached_tokens > len(again.token_ids) + 60
    assert said == []


def test_a_chat_goes_on_without_running_the_tower_again(stored: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = runs_of_towers(monkeypatch)
    with Model(stored, RuntimeConfig.of(device="cpu", context=512)) as opened:
        messages = asking(QUESTION * 2, png(4))  # long enough for a recurrent state to be kept
        said = answer(opened, messages, 5)
        messages += [{"role": "assistant", "content": said.text}, {"role": "user", "content": "And now?"}]
        more = answer(opened, messages)
        assert more.stats.cached_tokens > 8 and len(seen) == 1
        messages += [{"role": "assistant", "content": more.text}, *asking("And this?", png(5), png(4))]
        last = answer(opened, messages)
    assert len(seen) == 2, "the second picture alone is new"
    assert last.token_ids == alone(stored, messages)


def test_answers_about_pictures_side_by_side(stored: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own pictures, read once however many pieces its prompt has, and ends when it is asked to itself."""
    asked = [asking(QUESTION, png(seed)) for seed in (1, 2, 3)]
    wanted = [alone(stored, messages) for messages in asked]
    config = replace(RuntimeConfig.of(device="cpu", context=512, prefill_chunk=9), parallel=3)
    stopped = False
    with Model(stored, config) as model:
        seen = runs_of_towers(monkeypatch)
        params = model.params(temperature=0.0, num_predict=12)
        hooks = [NO_HOOKS, NO_HOOKS, Hooks(should_stop=lambda: stopped)]
        answers = [model.generator.begin(Request(m, params, hooks=h)) for m, h in zip(asked, hooks, strict=True)]
        stopped, waiting = True, answers  # the last that began: its check is no other's
        while waiting := [each for each in waiting if any(piece is None for piece in each.pieces)]:
            model.generator.step()
        assert [each.completion.token_ids for each in answers] == [*wanted[:2], []]
        assert answers[2].completion.finish_reason == "interrupted" and len(seen) == 2


def test_a_run_without_pictures_never_reads_the_tower(stored: StoredModel, tmp_path: Path) -> None:
    folder = shutil.copytree(stored.path, tmp_path / stored.id)
    data = bytearray((folder / "vision.safetensors").read_bytes())
    data[-20] ^= 1
    (folder / "vision.safetensors").write_bytes(data)
    damaged = StoredModel(stored.name, stored.id, folder)
    text = [{"role": "user", "content": QUESTION}]
    assert alone(damaged, text) == alone(stored, text)
    with pytest.raises(StoreError, match=r"tensor '.*' in .*vision\.safetensors does not match its checksum"):
        alone(damaged, asking(QUESTION, png(1)))


def test_memory_for_pictures_is_planned_where_some_may_come(stored: StoredModel) -> None:
    config = RuntimeConfig.of(device="cpu", context=512)
    with Model(stored, config) as seeing, Model(stored, replace(config, pictures=False)) as blind:
        assert seeing.plan.activation_bytes > blind.plan.activation_bytes + 100_000
    with Model(stored, RuntimeConfig.of(device="cpu", context=512, picture_tokens=8)) as modest:
        assert modest.plan.activation_bytes < seeing.plan.activation_bytes


def test_the_tokens_of_a_picture_are_bounded(model: Model, stored: StoredModel) -> None:
    large = asking(QUESTION, png(1, 700, 900))
    text = len(model.encode([{"role": "user", "content": QUESTION}]))
    assert text + 8 < len(model.encode(large)) <= text + 34
    with Model(stored, RuntimeConfig.of(device="cpu", context=512, picture_tokens=6)) as modest:
        assert len(modest.encode(large)) <= text + 10
    with pytest.raises(ContextLengthError, match=r"the prompt has \d+ tokens, the context 40"):
        alone(stored, large, context=40)


def test_control_tokens_in_what_a_user_writes_are_no_places_for_pictures(model: Model) -> None:
    mark = "<|image_pad|> <|image|>"
    one = model.encode(asking(mark, png(1)))
    assert sum(token < 0 for token in one) == sum(token < 0 for token in model.encode(asking("-", png(1))))
    answer(model, [{"role": "user", "content": mark}], 2)


def test_parts_that_are_all_text_are_one_text(model: Model, demo: StoredModel) -> None:
    """As the server has it; a template that reads no parts would write a list, or nothing."""

    def parts(*texts: str) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [{"type": "text", "text": text} for text in texts]}]

    with Model(demo, RuntimeConfig.of(device="cpu", context=512)) as blind:
        for opened in (model, blind):
            one, two = (opened.encode([{"role": "user", "content": text}]) for text in ("cat", "cat\nsat"))
            assert opened.encode(parts("cat")) == one and opened.encode(parts("cat", "sat")) == two


def test_raw_prompts_have_pictures_in_front(model: Model) -> None:
    ids = model.encode(asking(QUESTION, png(1), png(2)), raw=True)
    text = model.encode(QUESTION, raw=True)
    assert ids[-len(text) :] == text and ids[0] >= 0 > ids[1], "brackets, then the first picture"
    assert sum(a < 0 <= b for a, b in pairwise(ids)) == 2


def test_what_is_no_picture_is_refused(model: Model) -> None:
    for messages, words in (
        (asking("?", b"GIF89a"), "picture 1 is neither PNG nor JPEG"),
        ([{"role": "user", "content": [{"type": "audio"}]}], "a part of a message is"),
        (asking("?", png(1), png(2)[:60]), "picture 2 is damaged or cut short"),
    ):
        with pytest.raises(UsageError, match=words):
            answer(model, messages)


def test_a_template_that_places_no_pictures_is_told(stored: StoredModel, tmp_path: Path) -> None:
    folder = shutil.copytree(stored.path, tmp_path / "copy" / stored.id)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }}{% endfor %}")
    changed = resealed(StoredModel(stored.name, stored.id, folder), "chat_template.jinja")
    with pytest.raises(TextError, match="0 places for 1 pictures"):
        alone(changed, asking(QUESTION, png(1)))


@pytest.mark.parametrize(
    ("family", "published", "before"),
    [
        ("qwen3_5_moe", "qwen3.5-35b-a3b", "<|vision_start|>"),
        ("kimi_k25", "kimi-k2.5", "<|media_begin|>image<|media_content|>"),
    ],
)
def test_published_templates_place_pictures(family: str, published: str, before: str, tmp_path: Path) -> None:
    template = (PUBLISHED / published / "chat_template.jinja").read_text()
    stored = seeing_model(tmp_path, family, template=template)
    with Model(stored, RuntimeConfig.of(device="cpu", context=512)) as opened:
        ids = opened.encode(asking("Which?", png(1), png(2)))
        starts = [i for i in range(1, len(ids)) if ids[i] < 0 <= ids[i - 1]]
        assert len(starts) == 2
        for start in starts:
            text = [each for each in ids[:start] if each >= 0]
            assert opened.tokenizer.decode(text, skip_special=False).endswith(before)


def test_pictures_of_kimi_k3_stand_behind_their_sizes(tmp_path: Path) -> None:
    """As its template wants to be told what it shall write for each; what a user writes is no place for one."""
    with Model(seeing_model(tmp_path, "kimi_k3"), RuntimeConfig.of(device="cpu", context=512)) as opened:
        ids = opened.encode(asking("<|media_pad|>", png(1), png(2, 120, 40)))
        starts = [i for i in range(1, len(ids)) if ids[i] < 0 <= ids[i - 1]]
        texts = [opened.tokenizer.decode([i for i in ids[:at] if i >= 0], skip_special=False) for at in starts]
        ends = [f"<|media_begin|>image {size}<|media_content|>" for size in ("90x70", "40x120")]
        assert [text[-len(end) :] for text, end in zip(texts, ends, strict=True)] == ends
        assert opened.tokenizer.token_id("<|media_pad|>") not in ids


def test_a_store_without_its_tower_asks_for_another_pull(tmp_path: Path) -> None:
    older = seeing_model(tmp_path, "gemma4", sighted=False)
    assert older.manifest.vision is None and json.loads((older.path / "manifest.json").read_text())["version"] == 2
    assert alone(older, [{"role": "user", "content": QUESTION}])
    with pytest.raises(UsageError, match=r"stored without its vision tower.*`moeinf pull` it again"):
        alone(older, asking(QUESTION, png(1)))


def test_a_model_of_text_refuses_pictures(demo: StoredModel) -> None:
    with Model(demo, RuntimeConfig.of(device="cpu")) as opened, pytest.raises(UsageError, match="takes text alone"):
        answer(opened, asking(QUESTION, png(1)))


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3_vl_moe"])
def test_a_gpu_sees_what_the_cpu_sees(family: str, tmp_path: Path) -> None:
    """In float32, which rounds alike on both."""
    stored = seeing_model(tmp_path, family, dtype=torch.float32)
    text, one, two = [{"role": "user", "content": QUESTION}], asking(QUESTION, png(1)), asking("?", png(2), png(1))
    wanted = [alone(stored, messages) for messages in (text, one, two)]
    some: dict[str, Any] = {"prefill_chunk": 5, "expert_cache": "40%", "prefix_memory": "64MiB"}
    for options, numbers in (({}, (1, 0, 1)), (some, (2,))):
        with on_gpu(stored, context=512, **options) as opened:
            for number in numbers:  # from the second on, steps are recorded ones
                found = answer(opened, (text, one, two)[number]).token_ids
                assert found == wanted[number], (number, options)
