"""Several ranks over loopback answer as one machine does, whatever becomes of them."""

from __future__ import annotations

import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeinf.cli import run_command
from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.distributed import peer, proof, transfer
from moeinf.distributed.frames import Request
from moeinf.distributed.meeting import Offer
from moeinf.engine import completion, joining
from moeinf.engine.answers.generator import Answer
from moeinf.engine.completion import Hooks
from moeinf.engine.cpu import CpuRunner
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.errors import UsageError, WorkerError
from moeinf.pull.pull import pull
from moeinf.store.library import Library, StoredModel
from moeinf.store.verify import verify
from moeinf.traces.guesses import DrawnGuesses, LookAheadQuality
from moeinf.traces.replayed import RecordedRouting
from moeinf.traces.trace import Trace
from moeinf.types import Float32Array
from tests.support.answers_beside import drive, logits_beside
from tests.support.checkpoints import in_mxfp4, random_tensors, write_checkpoint
from tests.support.ranks.workers import Workers
from tests.support.seeing_models import asking, png, seeing_model
from tests.support.tiny_models import all_configs

PROMPT = "Once upon a time, in a village by the sea"
NUM_TOKENS = 16


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("ranks")) as started:
        yield started


@pytest.fixture(autouse=True)
def ended(workers: Workers) -> Iterator[None]:
    yield
    workers.end_all()


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    return pull("demo", PullOptions(quant="q8_0"), home=tmp_path_factory.mktemp("quantised"))


@pytest.fixture(scope="module")
def oracle(demo: StoredModel) -> list[int]:
    with opened(demo) as model:
        return tokens(model)


def opened(
    stored: StoredModel,
    notices: list[str] | None = None,
    recorded: RecordedRouting | None = None,
    *,
    parallel: int = 1,
    **options: Any,
) -> Model:
    told = [] if notices is None else notices
    config = RuntimeConfig.of(**{"threads": 1, "expert_cache": "30%"} | options)
    return Model(stored, replace(config, parallel=parallel), Reporting(told.append), recorded=recorded)


def tokens(model: Model, num_tokens: int = NUM_TOKENS) -> list[int]:
    model.generator.sequences.last.clear()
    answer = model.generate(PROMPT, model.params(temperature=0.0, num_predict=num_tokens, stop=()))
    model.tier.check_integrity()
    return answer.token_ids


def owned(model: Model) -> list[int]:
    """How many experts each rank owns now."""
    assert isinstance(model.runner, CpuRunner) and model.runner.star is not None
    ranks = model.runner.star
    counts: list[int] = np.bincount(ranks.owner[model.tier.exists()], minlength=1 + len(ranks.peers)).tolist()
    return counts


@pytest.mark.parametrize("caches", [["30%"], ["100%", "10%"], ["10%", "20%", "30%"]], ids=["2", "3", "4"])
def test_tokens_are_the_same_for_every_number_of_ranks(
    workers: Workers, demo: StoredModel, oracle: list[int], caches: list[str]
) -> None:
    started = [workers.start(demo, expert_cache=cache) for cache in caches]
    with opened(demo, speculate="always", **workers.options(*started)) as model:
        assert tokens(model) == oracle
        counts = owned(model)
        assert min(counts) > 0 and sum(counts) == demo.manifest.moe.total_experts
        assert all(each.address in model.describe() for each in started)
        assert model.last is not None
        stats, moe = model.last.stats, demo.manifest.moe
        decoded = len(stats.token_s) + stats.drafts.drafted - stats.drafts.accepted
        for cache, count in ((stats.prefill_cache, stats.prompt_tokens), (stats.decode_cache, decoded)):
            assert cache.activations == count * moe.num_layers * moe.top_k  # those of all ranks
            assert cache.demand_bytes == cache.demand_reads * demo.manifest.layout.stride_bytes
        here, counted = model.tier.stats, model.stats
        assert counted.activations > here.activations and counted.stall_s >= here.stall_s
        assert model.runner.reader.bytes_read() >= counted.demand_bytes
    with opened(demo, prefetch=False, prefill_chunk=3, **workers.options(*started)) as model:
        assert tokens(model) == oracle  # they serve the next rank 0, which does otherwise


def test_show_names_the_share_of_each_rank(
    workers: Workers, demo: StoredModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MOEINF_HOME", str(demo.path.parents[1]))
    monkeypatch.setenv("MOEINF_EXPERT_CACHE", "30%")
    address = workers.start(demo, expert_cache="30%").address
    assert run_command(["show", "demo", "--workers", address, "--worker-key-file", str(workers.key_file)]) == 0
    shares = re.search(rf"^rank 0 owns (\d+) experts, {address} (\d+)$", capsys.readouterr().out, re.MULTILINE)
    assert shares and sum(map(int, shares.groups())) == demo.manifest.moe.total_experts
    assert run_command(["show", "demo", "--devices", "cuda:0"]) == 2
    assert "is one card, which has all experts" in capsys.readouterr().err


def logits(model: Model, num_rows: int = 12) -> Float32Array:
    """Of a prompt in two parts, and of single tokens behind it."""
    runner, ids = model.runner, np.random.default_rng(5).integers(3, 90, num_rows + 8).tolist()
    runner.cache.truncate(0)
    rows = [
        runner.network.forward(ids[first:last], runner.cache, of_tokens=num_rows, last_only=False)
        for first, last in ((0, 5), (5, num_rows))
    ]
    rows += [runner.network.forward([token], runner.cache) for token in ids[num_rows:]]
    return np.concatenate(rows)


@pytest.mark.parametrize("fewer", [0, 1])
def test_routing_of_a_trace_goes_to_all_ranks(workers: Workers, demo: StoredModel, fewer: int) -> None:
    """It may be of fewer experts a token than the model's: policies of workers are told."""
    shape = replace(demo.manifest.moe, top_k=demo.manifest.moe.top_k - fewer)
    rng = np.random.default_rng(3)
    ids = np.argsort(rng.random((20, shape.num_layers, shape.num_experts)), axis=2)[:, :, : shape.top_k]
    trace = Trace("drawn", shape, ids, np.array([0, 20]), weights=rng.random(ids.shape, np.float32))
    guesses = DrawnGuesses(trace, LookAheadQuality(0.8, 0.8), seed=4)

    def found(**options: Any) -> Float32Array:
        with opened(demo, recorded=RecordedRouting(trace, guesses), **options) as model:
            rows = logits(model)
            assert model.stats.activations == 20 * shape.num_layers * shape.top_k
            return rows

    worker = workers.start(demo, expert_cache="30%")
    assert np.array_equal(found(**workers.options(worker)), found())
    with opened(demo, **workers.options(worker)) as model:  # the worker goes on with the model's own
        assert tokens(model)


def test_what_a_lost_worker_has_counted_is_kept(workers: Workers, demo: StoredModel) -> None:
    worker = workers.start(demo, expert_cache="30%")
    with opened(demo, **workers.options(worker)) as model:
        tokens(model)
        before = model.stats
        worker.signal(signal.SIGKILL)
        tokens(model)
        assert owned(model)[1] == 0
        later = model.stats.since(before)
        moe, last = demo.manifest.moe, model.last
        assert last is not None
        asked = last.stats.prompt_tokens + len(last.stats.token_s)
        assert later.activations <= asked * moe.num_layers * moe.top_k
        assert later.demand_reads > 0 and model.stats.demand_bytes > model.tier.stats.demand_bytes


def test_ranks_answer_about_pictures_as_one_machine_does(workers: Workers, tmp_path: Path) -> None:
    stored, asked = seeing_model(tmp_path, "gemma4"), asking("What is this?", png(1))

    def seen(**options: Any) -> list[int]:
        with opened(stored, context=200, expert_cache="40%", **options) as model:
            return model.generate(asked, model.params(temperature=0.0, num_predict=6)).token_ids

    alone = seen()
    assert seen(**workers.options(workers.start(stored, expert_cache="40%"))) == alone


@pytest.mark.parametrize("family", ["mixtral", "deepseek_v3", "gpt_oss"])
def test_logits_of_families_are_those_of_one_machine(workers: Workers, tmp_path: Path, family: str) -> None:
    config = next(each for each in all_configs().values() if each["model_type"] == family)
    tensors = random_tensors(config) | (in_mxfp4(config) if family == "gpt_oss" else {})
    checkpoint = write_checkpoint(tmp_path / "checkpoint", tensors, config, num_shards=0)
    stored = pull(str(checkpoint), PullOptions(name="tiny"), home=tmp_path / "home")
    size = f"{stored.manifest.moe.top_k * stored.manifest.layout.stride_bytes}B"
    with opened(stored, expert_cache=size) as model:
        wanted = logits(model), logits_beside(model)
    with opened(stored, expert_cache=size, **workers.options(workers.start(stored, expert_cache=size))) as model:
        assert min(owned(model)) > 0
        assert np.array_equal(logits(model), wanted[0])
        assert np.array_equal(logits_beside(model), wanted[1])


def test_blocks_of_a_quantised_model_are_computed_elsewhere(workers: Workers, quantised: StoredModel) -> None:
    with opened(quantised) as model:
        wanted = tokens(model), logits(model, 40), logits_beside(model)
    with opened(quantised, **workers.options(workers.start(quantised, expert_cache="50%"))) as model:
        assert tokens(model) == wanted[0]
        assert np.array_equal(logits(model, 40), wanted[1])  # more than the few rows that are multiplied one by one
        assert np.array_equal(logits_beside(model), wanted[2])


def begun(model: Model, number: int, hooks: Hooks | None = None) -> Answer:
    params = model.params(temperature=0.8, seed=number, num_predict=NUM_TOKENS, stop=())
    return model.generator.begin(completion.Request(PROMPT[: 4 + 8 * number], params, hooks=hooks or Hooks()))


@pytest.mark.parametrize("lost", [False, True], ids=["all-there", "one-lost"])
def test_answers_side_by_side_are_those_that_each_is_alone(workers: Workers, demo: StoredModel, lost: bool) -> None:
    """Where a worker is lost between two steps, the rows that it was to compute are read and computed here."""
    with opened(demo) as model:
        wanted = []
        for number in range(4):
            drive(model, [answer := begun(model, number)])
            wanted.append(answer.completion.token_ids)
    started = [workers.start(demo, expert_cache=cache) for cache in ("20%", "40%")]
    with opened(demo, parallel=4, **workers.options(*started)) as model:
        before = owned(model)
        answers = [begun(model, number) for number in range(4)]

        def between(step: int) -> None:
            if lost and step == 6:
                started[0].signal(signal.SIGKILL)

        drive(model, answers, between)
        assert [answer.completion.token_ids for answer in answers] == wanted
        assert owned(model) == ([before[0] + before[1], 0, before[2]] if lost else before)
        model.tier.check_integrity()


def test_who_stops_in_a_step_with_workers_stops_alone(workers: Workers, demo: StoredModel) -> None:
    stopping = False
    with opened(demo, parallel=2, **workers.options(workers.start(demo, expert_cache="40%"))) as model:
        drive(model, [alone := begun(model, 1)])
        stopped, other = begun(model, 3, Hooks(should_stop=lambda: stopping)), begun(model, 1)

        def between(step: int) -> None:
            nonlocal stopping
            stopping = step > 4

        drive(model, [stopped, other], between)
        assert stopped.completion.finish_reason == "interrupted" and len(stopped.completion.token_ids) < NUM_TOKENS
        assert other.completion.token_ids == alone.completion.token_ids and min(owned(model)) > 0


def test_rows_of_several_requests_go_in_one_message(
    workers: Workers, demo: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer's rows are those of whoever computes together: here, of three tokens that are no sequence."""
    with opened(demo, **workers.options(workers.start(demo, expert_cache="50%"))) as model:
        runner = model.runner
        assert isinstance(runner, CpuRunner) and runner.star is not None
        connection, asked = runner.star.connection(1), list[Request]()
        ask = connection.ask

        def noted(request: Request) -> None:
            asked.append(request)
            ask(request)

        monkeypatch.setattr(connection, "ask", noted)
        runner.network.forward([5, 9, 70], runner.cache)
        layers = [request.layer for request in asked if request.num_rows]
        assert layers == sorted(set(layers)) and max(len(request.ids) for request in asked) == 3


# ---- faults


def until(model: Model, wanted: list[int]) -> None:
    """Answers until the ranks own so much: what has changed is noticed between two layers."""
    give_up_at = time.monotonic() + 60
    while owned(model) != wanted:
        assert time.monotonic() < give_up_at, "a rank did not come back"
        model.runner.network.forward([5], model.runner.cache)
        model.runner.cache.truncate(0)
        time.sleep(0.05)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that are lost are noticed, and called again, at once."""
    monkeypatch.setattr(peer, "SILENT_S", 2.0)
    monkeypatch.setattr(peer, "PING_S", 0.1)
    monkeypatch.setattr(peer, "FIRST_RETRY_S", 0.1)
    monkeypatch.setattr(peer, "LAST_RETRY_S", 0.2)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_experts_of_a_lost_worker_are_read_here_until_it_is_back(
    workers: Workers, demo: StoredModel, oracle: list[int], how: int
) -> None:
    lost, other = (workers.start(demo, expert_cache="40%") for _ in range(2))
    notices: list[str] = []
    with opened(demo, notices, **workers.options(lost, other)) as model:
        before = owned(model)
        params = model.params(temperature=0.0, num_predict=NUM_TOKENS, stop=())
        answer = model.pieces(PROMPT, params)
        next(answer)
        lost.signal(how)  # in the middle of an answer
        for _ in answer:
            pass
        assert model.last is not None and model.last.token_ids == oracle
        assert owned(model) == [before[0] + before[1], 0, before[2]]
        assert len(notices) == 1 and f"worker {lost.address} is lost" in notices[0]
        assert tokens(model) == oracle
        if how == signal.SIGKILL:
            workers.start(demo, port=int(lost.address.rpartition(":")[2]), expert_cache="40%")
        else:
            lost.signal(signal.SIGCONT)
        until(model, before)
        assert tokens(model) == oracle
        assert len(notices) == 2 and f"worker {lost.address} is here again" in notices[1]


@pytest.mark.usefixtures("hasty")
def test_a_worker_that_is_late_is_not_waited_for(
    workers: Workers, demo: StoredModel, oracle: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "SILENT_S", 60.0)
    late, notices = workers.start(demo, expert_cache="40%"), list[str]()
    with opened(demo, notices, **workers.options(late)) as model:
        before = owned(model)
        monkeypatch.setattr(peer, "REPLY_S", 0.2)
        late.signal(signal.SIGSTOP)
        assert tokens(model) == oracle
        assert owned(model)[1] == 0 and "it does not answer" in notices[0]
        monkeypatch.setattr(peer, "REPLY_S", 60.0)
        late.signal(signal.SIGCONT)  # what it sends now is of no request any more
        until(model, before)
        assert tokens(model) == oracle


@pytest.mark.usefixtures("hasty")
def test_an_answer_that_is_to_end_waits_for_no_worker(
    workers: Workers, demo: StoredModel, oracle: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "SILENT_S", 60.0)
    monkeypatch.setattr(peer, "REPLY_S", 10.0)
    monkeypatch.setattr(peer, "STOP_S", 0.1)
    late, notices, calls = workers.start(demo, expert_cache="40%"), list[str](), itertools.count()
    standing, ending, look = threading.Event(), threading.Event(), peer.Connection._look

    def look_while_waiting(connection: peer.Connection) -> None:
        if standing.is_set():
            ending.set()
        look(connection)

    def should_stop() -> bool:
        """In the eighth layer the worker stands still; it is while rank 0 waits that the answer is to end."""
        if next(calls) == 8:
            late.signal(signal.SIGSTOP)
            standing.set()
        return ending.is_set()

    monkeypatch.setattr(peer.Connection, "_look", look_while_waiting)

    with opened(demo, notices, **workers.options(late)) as model:
        before = owned(model)
        params = model.params(temperature=0.0, num_predict=NUM_TOKENS, stop=())
        model.generate(PROMPT, params, hooks=Hooks(should_stop))
        assert model.last is not None and model.last.finish_reason == "interrupted"
        assert "it had not replied when the answer was to end" in notices[0]
        late.signal(signal.SIGCONT)
        until(model, before)
        assert tokens(model) == oracle


@pytest.mark.usefixtures("hasty")
def test_a_worker_whose_disk_fails_says_why(workers: Workers, tmp_path: Path, oracle: list[int]) -> None:
    here, there = (pull("demo", PullOptions(), home=tmp_path / name) for name in ("here", "there"))
    notices: list[str] = []
    with opened(here, notices, **workers.options(workers.start(there, expert_cache="10%"))) as model:
        for path in there.shard_paths:
            with path.open("r+b") as file:
                file.truncate(4096)
        assert tokens(model) == oracle
        assert "is lost (" in notices[0] and f"is unreadable in {there.path}" in notices[0]


def test_an_answer_that_was_given_up_leaves_nothing_for_the_next(
    workers: Workers, demo: StoredModel, oracle: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(demo, **workers.options(workers.start(demo, expert_cache="50%"))) as model:
        assert isinstance(model.runner, CpuRunner) and model.runner.star is not None
        visit = model.tier.visit
        monkeypatch.setattr(model.tier, "visit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            tokens(model)
        monkeypatch.setattr(model.tier, "visit", visit)
        assert tokens(model) == oracle and owned(model)[1] > 0


def test_a_worker_without_the_model_is_sent_it(
    workers: Workers, demo: StoredModel, oracle: list[int], tmp_path: Path
) -> None:
    there = Library(tmp_path / "there")
    notices: list[str] = []
    with opened(demo, notices, **workers.options(workers.start(demo, home=there.home))) as model:
        assert tokens(model) == oracle and owned(model)[1] > 0
    assert "has no such model: it is sent there" in notices[0]
    sent = there.find("demo")
    assert sent.id == demo.id and verify(sent) == []


def test_what_has_come_of_a_model_is_not_sent_again(workers: Workers, demo: StoredModel, tmp_path: Path) -> None:
    """An attempt before has brought some of the files, one of them with another content of the same length."""
    there = Library(tmp_path / "there")
    partial = there.home / "partial" / f"from-rank-0-{demo.id}"
    partial.mkdir(parents=True)
    first, second = demo.shard_paths[:2]
    (partial / first.name).write_bytes(first.read_bytes())
    (partial / second.name).write_bytes(bytes(second.stat().st_size))
    with pytest.raises(WorkerError, match="does not match its checksum: it was damaged on its way"):
        opened(demo, **workers.options(workers.start(demo, home=there.home)))
    assert not (partial / first.name).exists()  # all of it comes anew
    with opened(demo, **workers.options(workers.start(demo, home=there.home))) as model:
        assert owned(model)[1] > 0


def test_a_worker_that_never_has_the_model_is_not_sent_it_again(
    workers: Workers, demo: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lacking:
        """moeinf.distributed.peer.Connection of a worker that says so each time."""

        offer, link = Offer(0, 0.0, lacks_model=True), None

        def __init__(self, *_: Any) -> None:
            pass

        def close(self) -> None:
            pass

    sent: list[Any] = []
    monkeypatch.setattr(peer, "Connection", Lacking)
    monkeypatch.setattr(transfer, "send_model", lambda *each: sent.append(each))
    with pytest.raises(WorkerError, match="it has no such model, though it was sent it"):
        opened(demo, workers="127.0.0.1:1", worker_key_file=str(workers.key_file))
    assert len(sent) == 1


# ---- who is let in


def test_a_worker_with_another_key_is_refused(workers: Workers, demo: StoredModel, oracle: list[int]) -> None:
    worker = workers.start(demo, key="another key, of whoever that may be")
    with pytest.raises(WorkerError, match=rf"worker {worker.address}: it refuses: it has another key"):
        opened(demo, **workers.options(worker))


def test_an_impostor_that_lets_everybody_in_is_found_out(
    workers: Workers, demo: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, real = workers.start(demo), proof._mac

    def other(key: bytes, role: bytes, *rest: bytes) -> bytes:
        return real(key + b"x" * (role == b"worker"), role, *rest)

    monkeypatch.setattr(proof, "_mac", other)
    with pytest.raises(WorkerError, match="who answers does not know the key"):
        opened(demo, **workers.options(worker))


@pytest.mark.parametrize("what", ["version", "model", "isa"])
def test_what_would_compute_otherwise_is_refused(
    workers: Workers, demo: StoredModel, quantised: StoredModel, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, isa, wanted = workers.start(demo), "", "another model"
    if what == "version":
        monkeypatch.setattr(joining, "__version__", "0.0.1")
        wanted = "rank 0 0.0.1; install the same on both"
    if what == "isa":
        isa, wanted = "generic", "rank 0's of generic; set MOEINF_ISA to one for both"
    with pytest.raises(WorkerError, match=wanted):
        opened(quantised if what == "model" else demo, isa=isa, **workers.options(worker))
    monkeypatch.undo()
    with opened(demo, **workers.options(worker)) as model:  # the next one is served
        assert owned(model)[1] > 0


def test_a_worker_serves_one_at_a_time(workers: Workers, demo: StoredModel) -> None:
    worker = workers.start(demo)
    with opened(demo, **workers.options(worker)), pytest.raises(WorkerError, match="it serves another process"):
        opened(demo, **workers.options(worker))


def test_a_worker_that_is_not_there_is_named(workers: Workers, demo: StoredModel) -> None:
    with pytest.raises(WorkerError, match=r"worker 127.0.0.1:9: nothing answers there: .* refused; start it"):
        opened(demo, workers="127.0.0.1:9", worker_key_file=str(workers.key_file))


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"workers": "somewhere"}, "'somewhere' is no address"),
        ({"workers": "a:1,a:1"}, "names one twice"),
        ({"workers": "a:1", "worker_key_file": ""}, "--worker-key-file PATH is missing"),
        ({"workers": "a:1", "worker_key_file": "/nowhere/key"}, "No such file"),
        ({"workers": "a:1", "device": "cuda"}, "leave one out"),
        ({"workers": ""}, "is for --workers"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    workers: Workers, demo: StoredModel, options: dict[str, Any], wanted: str
) -> None:
    with pytest.raises(UsageError, match=wanted):
        opened(demo, **{"worker_key_file": str(workers.key_file)} | options)


def test_a_file_that_is_no_key_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match="holds 0 bytes; write a random key"):
        joining.read_key("--key-file", str(tmp_path / "fifo"))
    with pytest.raises(UsageError, match="/dev/zero is longer than 4096 bytes; name the file with the key"):
        joining.read_key("--key-file", "/dev/zero")


def test_a_short_key_is_refused(tmp_path: Path, demo: StoredModel) -> None:
    (tmp_path / "key").write_text("x" * 15)
    with pytest.raises(UsageError, match="holds 15 bytes; write a random key of at least 16"):
        opened(demo, workers="a:1", worker_key_file=str(tmp_path / "key"))
