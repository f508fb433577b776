"""What a watcher is told of a model at work."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.server.page.live import MOST_WATCHERS, LiveEvent, Observed, Watch, live_route
from moeinf.server.turns.overview import Seen
from moeinf.store.library import StoredModel


@pytest.fixture
def model(demo: StoredModel) -> Iterator[Model]:
    with Model(demo, replace(RuntimeConfig.of(expert_cache="33%"), many_conversations=True)) as opened:
        yield opened


def flags(packed: bytes, event: LiveEvent) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """[layers, experts] what a bitmap says."""
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")[: event.layers * event.experts]
    return bits.reshape(event.layers, event.experts).astype(np.bool_)


def answer(model: Model, num_predict: int) -> None:
    model.generate("Once upon a time", model.params(temperature=0.0, num_predict=num_predict))


def test_without_a_model_there_is_only_the_state() -> None:
    requests = (Seen("big", "loading", progress=(3, 10)), Seen("big", "queued", position=1, eta_s=2.5))
    assert Watch().event(Observed("big", None, requests)) == LiveEvent("big", requests)


def test_what_was_used_and_is_resident_is_told(model: Model) -> None:
    watch = Watch()
    before = watch.event(Observed(model.name, model))
    assert (before.layers, before.experts) == (model.manifest.moe.num_layers, model.manifest.moe.num_experts)
    assert not flags(before.used, before).any() and before.hit_rate is None
    answer(model, 1)
    event = watch.event(Observed(model.name, model))
    used, resident = flags(event.used, event), flags(event.resident, event)
    assert used.sum(axis=1).min() >= model.manifest.moe.top_k, "each layer was asked for the experts of a token"
    assert 0 < resident.sum() <= model.tier.num_slots
    keys = np.flatnonzero(resident).tolist()
    assert set(keys) == model.tier.snapshot().resident
    assert event.hit_rate == model.tier.stats.hit_rate


def test_only_the_last_period_counts(model: Model) -> None:
    now = 0.0
    watch = Watch(clock=lambda: now)
    watch.event(Observed(model.name, model))
    answer(model, 9)  # of which the prompt gives the first
    read, stalled, now = model.runner.reader.bytes_read(), model.tier.stats.stall_s, 2.0
    busy = watch.event(Observed(model.name, model))
    assert busy.tokens_per_s == 8 / 2 and busy.read_bytes_per_s == read / 2 > 0
    assert busy.stall_share == min(1.0, stalled / 2)
    now = 4.0
    idle = watch.event(Observed(model.name, model))
    assert (idle.tokens_per_s, idle.read_bytes_per_s, idle.stall_share, idle.hit_rate) == (0, 0, 0, None)
    assert not flags(idle.used, idle).any() and idle.resident == busy.resident


def test_the_memory_of_the_plan_is_told_in_parts(model: Model) -> None:
    parts = {part.part: part.bytes for part in Watch().event(Observed(model.name, model)).memory}
    assert sum(parts.values()) == model.plan.total_bytes
    assert parts["expert cache"] == model.plan.cache_bytes
    model.tier.resize(model.tier.num_slots - 1)
    smaller = {part.part: part.bytes for part in Watch().event(Observed(model.name, model)).memory}
    assert parts["expert cache"] - smaller["expert cache"] == model.plan.slot_bytes


def test_watching_from_another_thread_changes_no_answer(model: Model) -> None:
    answer(model, 24)
    assert model.last is not None
    alone, done, events = model.last.token_ids, threading.Event(), list[LiveEvent]()

    def look_on() -> None:
        watch = Watch()
        while not done.is_set():
            events.append(watch.event(Observed(model.name, model)))

    thread = threading.Thread(target=look_on)
    thread.start()
    try:
        answer(model, 24)
    finally:
        done.set()
        thread.join()
    assert model.last.token_ids == alone
    assert any(event.tokens_per_s > 0 for event in events)
    assert all(0 <= event.stall_share <= 1 and flags(event.resident, event).sum() for event in events)


def test_a_model_that_was_closed_is_no_model(demo: StoredModel) -> None:
    watch = Watch()
    with Model(demo, replace(RuntimeConfig.of(expert_cache="33%"), many_conversations=True)) as model:
        watch.event(Observed(model.name, model))
    assert watch.event(Observed(model.name, model)) == LiveEvent(model.name)


def test_events_come_until_the_server_ends() -> None:
    requests = tuple(Seen("big", "queued", position=at) for at in (1, 2))
    seen = iter([Observed(requests=requests[:1]), Observed(requests=requests), None])
    client = TestClient(Starlette(routes=[live_route(lambda: next(seen), period_s=0.0)]))
    answer = client.get("/api/live")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]
    assert [[each["position"] for each in event["requests"]] for event in events] == [[1], [1, 2]]
    assert events[0]["resident"] == "" and events[0]["hit_rate"] is None


def test_no_more_watchers_than_may() -> None:
    answers = list[int]()

    def observe() -> Observed | None:
        """Each watcher that is let in brings the next one, until one is refused."""
        if len(answers) > MOST_WATCHERS or 503 in answers:
            return None
        answers.append(client.get("/api/live").status_code)
        return None

    client = TestClient(Starlette(routes=[live_route(observe, period_s=0.0)]))
    client.get("/api/live")
    assert 503 in answers
    assert client.get("/api/live").status_code == 200, "whoever leaves makes room"
