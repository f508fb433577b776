"""Answers that are made side by side: each has the tokens that it has alone, whoever comes and goes meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.answers.generator import Answer
from moeinf.engine.completion import Completion, Hooks, Request
from moeinf.engine.model import Model
from moeinf.errors import NotFiniteError, UsageError
from moeinf.models.layers.kv_cache import Cache
from moeinf.sampling.cached_tokens import CachedTokens
from moeinf.sampling.params import SamplingParams
from moeinf.sampling.step_queue import Asker
from moeinf.store.library import StoredModel
from tests.support.answers_beside import advance, drive

PROMPTS = (
    "Once upon a time",
    "The little dog ran to the tree and said that " * 12,
    "There was a girl",
    "One day a bird and a cat " * 30,
)
SETTINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 3},
    {"temperature": 1.2, "seed": 4, "top_k": 20, "repeat_penalty": 1.1},
    {"temperature": 0.0, "presence_penalty": 0.4},
)


def opened(demo: StoredModel, parallel: int, **options: Any) -> Model:
    return Model(demo, replace(RuntimeConfig.of(device="cpu", threads=2, **options), parallel=parallel))


def begun(model: Model, which: int, hooks: Hooks | None = None, num_predict: int = 24) -> Answer:
    params = model.params(**SETTINGS[which], num_predict=num_predict)
    return model.generator.begin(Request(PROMPTS[which], params, raw=True, hooks=hooks or Hooks()))


def alone(model: Model, which: int) -> Completion:
    params = model.params(**SETTINGS[which], num_predict=24)
    return model.generate(PROMPTS[which], params, raw=True)


@pytest.mark.parametrize("options", [{}, {"expert_cache": "15%"}, {"expert_cache": "15%", "prefetch": False}])
def test_answers_are_those_that_are_made_alone(demo: StoredModel, options: dict[str, Any]) -> None:
    with opened(demo, 1, **options) as model:
        wanted = [alone(model, which) for which in range(4)]
    with opened(demo, 4, **options) as model:
        answers = [begun(model, which) for which in range(4)]
        drive(model, answers)
        for answer, one in zip(answers, wanted, strict=True):
            assert (answer.completion.token_ids, answer.completion.text) == (one.token_ids, one.text)
            assert answer.completion.finish_reason == one.finish_reason
            assert answer.completion.stats.generated_tokens == one.stats.generated_tokens
        model.tier.check_integrity()


def test_answers_come_and_go_between_steps(demo: StoredModel) -> None:
    with opened(demo, 3) as model:
        wanted = [alone(model, which).token_ids for which in range(4)]
        first = [begun(model, 0), begun(model, 1)]
        waiting = advance(first)
        for _ in range(5):
            model.generator.step()
            waiting = advance(waiting)
        later = begun(model, 2)
        first[0].pieces.close()  # its reader has gone
        last = begun(model, 3)
        drive(model, [first[1], later, last])
        assert [each.completion.token_ids for each in (first[1], later, last)] == wanted[1:]
        assert first[0].completion.finish_reason == "interrupted"
        assert wanted[0][: len(first[0].completion.token_ids)] == first[0].completion.token_ids


def test_who_stops_in_a_step_stops_alone(demo: StoredModel) -> None:
    stopping = False
    with opened(demo, 2) as model:
        wanted = alone(model, 1).token_ids
        stopped, other = begun(model, 0, Hooks(should_stop=lambda: stopping)), begun(model, 1)

        def between(step: int) -> None:
            nonlocal stopping
            stopping = step > 4

        drive(model, [stopped, other], between)
        assert other.completion.token_ids == wanted
        assert stopped.completion.finish_reason == "interrupted" and len(stopped.completion.token_ids) < 24
        assert model.generate(PROMPTS[1], model.params(**SETTINGS[1], num_predict=24), raw=True).token_ids == wanted


def test_what_is_wrong_with_one_is_none_of_the_others_business(
    demo: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(demo, 2) as model:
        wanted = alone(model, 1).token_ids
        broken, other = begun(model, 0), begun(model, 1)
        waiting = advance([broken, other])
        for _ in range(4):
            model.generator.step()
            waiting = advance(waiting)
        forward = model.runner.step
        (mine,) = [each for each in model.generator.sequences._taken if len(each.tokens) < 20]

        def step(parts: Sequence[Any], between_layers: Callable[[], None]) -> Any:
            if any(part.cache is mine.cache for part in parts):
                raise NotFiniteError("a row is no number")
            return forward(parts, between_layers)

        monkeypatch.setattr(model.runner, "step", step)
        model.generator.step()
        with pytest.raises(NotFiniteError):
            advance([broken])
        drive(model, [other])
        assert other.completion.token_ids == wanted


def test_there_are_no_more_answers_than_places(demo: StoredModel) -> None:
    with opened(demo, 2) as model:
        answers = [begun(model, which) for which in range(3)]
        assert advance(answers[:2]) and advance(answers[2:])  # the third takes the place of the first
        with pytest.raises(UsageError, match="ended by a later request"):
            advance(answers[:1])
        drive(model, answers[1:])
        assert all(each.completion.token_ids for each in answers[1:])


def test_a_chat_goes_on_with_its_own_keys_and_values(demo: StoredModel) -> None:
    with opened(demo, 2) as model:
        answers = [begun(model, which) for which in (0, 2)]
        drive(model, answers)
        texts = [PROMPTS[which] + answer.completion.text for which, answer in zip((0, 2), answers, strict=True)]
        params = model.params(temperature=0.0, num_predict=4)
        later = [model.generator.begin(Request(text + " and then", params, raw=True)) for text in reversed(texts)]
        drive(model, later)
        assert all(each.completion.stats.cached_tokens > 20 for each in later)


@pytest.mark.parametrize("tokens", [330, 480, 700])
def test_answers_that_there_is_no_room_for_wait_or_pause(
    demo: StoredModel, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tokens: that all have room for together, of a context of 320; each would have some 290."""
    options = {"context": 320, "prefix_memory": "0"}
    with opened(demo, 1, **options) as model:
        wanted = [model.generate(PROMPTS[which], long(model, which), raw=True) for which in range(4)]
    given_up = list[int]()
    give_up = CachedTokens.give_up

    def counted(self: CachedTokens) -> None:
        given_up.append(len(self.tokens))
        give_up(self)

    monkeypatch.setattr(CachedTokens, "give_up", counted)
    with opened(demo, 4, **options) as model:
        sequences, cache = model.generator.sequences, model.runner.cache
        assert isinstance(cache, Cache) and sequences.room is not None and model.runner.row_pages is not None
        planes = sum(state.planes for state in cache.states)
        sequences.room.num_bytes = tokens * cache.token_bytes
        most = sequences.room.num_bytes + 4 * planes * 2 * 4096  # pages are no whole number of tokens

        def check(step: int) -> None:
            used = model.runner.row_pages.used_bytes() if model.runner.row_pages else None
            assert used is None or used <= most

        answers = [model.generator.begin(Request(PROMPTS[which], long(model, which), raw=True)) for which in range(4)]
        drive(model, answers, check)
        assert [each.completion.token_ids for each in answers] == [each.token_ids for each in wanted]
        assert any(given_up), "an answer was paused, or an idle sequence freed"


def test_a_background_answer_pauses_for_a_chat_that_has_no_room(demo: StoredModel) -> None:
    options = {"context": 320, "prefix_memory": "0"}
    with opened(demo, 1, **options) as model:
        wanted = [model.generate(PROMPTS[which], long(model, which), raw=True).token_ids for which in (2, 3)]
    with opened(demo, 2, **options) as model:
        sequences, cache = model.generator.sequences, model.runner.cache
        assert isinstance(cache, Cache) and sequences.room is not None
        sequences.room.num_bytes = 330 * cache.token_bytes
        side, chat = (
            model.generator.begin(Request(PROMPTS[which], long(model, which), raw=True, asker=Asker("", background)))
            for which, background in ((2, True), (3, False))
        )
        waiting = advance([side])
        for _ in range(40):
            model.generator.step()
            waiting = advance(waiting)
        before = len(side.completion.token_ids)
        ended = list[Answer]()
        waiting = [side, chat]
        while waiting:
            going = advance(waiting)
            ended += [each for each in waiting if each not in going]
            waiting = going
            model.generator.step()
        assert before > 30 and ended == [chat, side]
        assert [side.completion.token_ids, chat.completion.token_ids] == wanted


@pytest.mark.parametrize("steps", [0, 3, 12])
@pytest.mark.parametrize("options", [{}, {"expert_cache": "15%", "speculate": "always", "prefix_memory": "0"}])
def test_an_answer_leaves_its_place_to_another_and_goes_on_as_it_would(
    demo: StoredModel, options: dict[str, Any], steps: int
) -> None:
    """steps: after which it is asked to."""
    giving_way, away = False, False

    def gives_way() -> bool:
        nonlocal away
        away |= giving_way
        return giving_way

    with opened(demo, 1, **options) as model:
        wanted = [alone(model, which) for which in range(4)]
        background = begun(model, 1, Hooks(gives_way=gives_way))
        waiting = advance([background])
        for _ in range(steps):
            model.generator.step()
            waiting = advance(waiting)
        giving_way = True
        while not away:
            model.generator.step()
            waiting = advance(waiting)
        for which in (0, 3):
            chat = begun(model, which)
            drive(model, [chat])
            assert chat.completion.token_ids == wanted[which].token_ids and waiting
        giving_way = False
        drive(model, waiting)
        assert background.completion.token_ids == wanted[1].token_ids
        assert background.completion.finish_reason == wanted[1].finish_reason
        assert len(model.generator.sequences._free) == 1 and model.generator.sequences.lent == 0
        model.tier.check_integrity()


def test_who_waits_without_a_place_may_be_stopped(demo: StoredModel) -> None:
    stopping = False
    with opened(demo, 1) as model:
        wanted = alone(model, 0).token_ids
        hooks = Hooks(gives_way=lambda: True, should_stop=lambda: stopping)
        stopped, other = begun(model, 1, hooks), begun(model, 0)
        assert advance([stopped])
        stopping = True
        drive(model, [other])
        assert not advance([stopped]) and stopped.completion.finish_reason == "interrupted"
        assert other.completion.token_ids == wanted and alone(model, 0).token_ids == wanted
        assert len(model.generator.sequences._free) == 1


def long(model: Model, which: int) -> SamplingParams:
    """Of an answer that goes on until some 290 tokens are used."""
    used = len(model.tokenizer.encode(PROMPTS[which]))
    num_predict = max(20, 290 - used)
    return model.params(**SETTINGS[which], num_predict=num_predict, min_tokens=num_predict)
