"""What is kept is found again, whatever came between, and gives what computing it would have given."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf.prefixes import prefix_opening
from moeinf.prefixes.block import Block
from moeinf.prefixes.disk import DiskTier
from moeinf.prefixes.memory import MemoryTier
from moeinf.prefixes.prefix_opening import Kept, turn_borders
from moeinf.prefixes.store import Limits, PrefixStore
from moeinf.sampling.cached_tokens import CachedTokens
from moeinf.sampling.loop import Timing
from moeinf.types import Float32Array, Phase
from tests.support.fake_cache import ROW_BYTES, FakeCache
from tests.support.faults.python import places
from tests.support.stepping import stepped

ROOT, BLOCK, TURN = b"r" * 16, 8, 4  # TURN: the token that begins a turn


class Watch:
    """A monitor that only takes the times."""

    def __init__(self) -> None:
        self.timing = Timing()

    def check(self) -> None: ...

    def gives_way(self) -> bool:
        return False

    def begin(self, phase: Phase) -> None: ...

    def reading(self, start: int, end: int, total: int) -> None: ...

    def prefilled(self, done: int, total: int) -> None: ...


class Likeliest:
    def sample(self, logits: Float32Array, history: Sequence[int]) -> int:
        return int(logits.argmax())


class Run:
    """A model with prefixes, as an engine holds it."""

    def __init__(
        self,
        *,
        rewinds: bool = True,
        memory: int = 1 << 20,
        folder: Path | None = None,
        short: int = 0,
        limit: int = 4096,
    ) -> None:
        self.cache = FakeCache(rewinds=rewinds, limit=limit)
        self.said = list[str]()
        self.disk = None if folder is None else DiskTier(folder / "model", 1 << 22, {"id": 1}, self.said.append)
        self.memory = MemoryTier(memory)
        self.store = PrefixStore(
            self.cache, ROOT, self.memory, self.disk, lambda prompt: turn_borders(prompt, {TURN}), Limits(BLOCK, short)
        )
        self.sequence = CachedTokens(self.cache, self.store)
        self.timing = Timing()

    def answer(self, prompt: Sequence[int], max_tokens: int = 6, chunk: int = 5) -> list[int]:
        watch = Watch()
        tokens = list(
            stepped(self.cache, self.sequence, prompt, Likeliest(), watch, max_tokens=max_tokens, chunk=chunk)
        )
        self.sequence.settle()
        self.timing = watch.timing
        assert self.sequence.tokens == [*prompt, *tokens[: self.cache.length - len(prompt)]]
        assert self.cache.length == len(self.sequence.tokens) and self.memory.used_bytes <= self.memory.budget_bytes
        return tokens


def computed(prompt: Sequence[int], *, rewinds: bool = True, max_tokens: int = 6, limit: int = 4096) -> list[int]:
    """The answer of a model that keeps nothing."""
    cache = FakeCache(rewinds=rewinds, limit=limit)
    return list(
        stepped(cache, CachedTokens(cache), prompt, Likeliest(), Watch(), max_tokens=max_tokens, chunk=len(prompt))
    )


def tokens(length: int, seed: int) -> list[int]:
    """Of no turn."""
    numbers: list[int] = np.random.default_rng(seed).integers(0, TURN, length).tolist()
    return numbers


@pytest.mark.parametrize("rewinds", [True, False], ids=["rows", "recurrent"])
def test_two_conversations_by_turns_pay_only_for_what_is_new(rewinds: bool) -> None:
    run = Run(rewinds=rewinds)
    chats = [[*tokens(50, seed=seed), TURN, 1] for seed in (1, 2)]
    for turn in range(4):
        for number, prompt in enumerate(chats):
            before, answer = run.cache.computed, run.answer(prompt)
            assert answer == computed(prompt, rewinds=rewinds)
            if turn:
                assert run.cache.computed - before <= 6 + 6, "5 tokens of a turn, one not computed yet, and the answer"
                assert run.timing.cached_from == "memory"
            chats[number] = [*prompt, *answer, TURN, *tokens(3, seed=10 * turn + number), 1]


def test_a_prompt_that_goes_on_copies_nothing() -> None:
    run = Run()
    prompt = tokens(40, 1)
    for _ in range(3):
        prompt = [*prompt, *run.answer(prompt), 3]
    assert run.cache.copied_bytes == 0 and run.timing.cached_from == "live"


def test_a_prompt_that_changes_its_last_words_copies_nothing() -> None:
    run, prompt = Run(), tokens(40, 1)
    run.answer(prompt, max_tokens=1)
    assert run.answer([*prompt[:-3], 9, 9], max_tokens=1) and run.cache.copied_bytes == 0
    assert run.timing.cached_tokens == 37


def test_a_prompt_that_leaves_a_kept_one_in_the_middle_of_a_block_takes_what_is_the_same() -> None:
    run, prompt = Run(), tokens(45, 1)
    run.answer(prompt)
    run.answer(tokens(30, 2))
    assert run.answer([*prompt[:43], 9, 9, 9]) == computed([*prompt[:43], 9, 9, 9])
    assert (run.timing.cached_tokens, run.timing.cached_from) == (43, "memory")


def test_a_recurrent_model_goes_back_to_where_the_turn_began() -> None:
    """The next prompt lacks what the template writes behind the last turn, such as the beginning of a thought."""
    run, prompt = Run(rewinds=False), [*tokens(40, 1), TURN, 3, 3]
    run.answer(prompt)
    other = [*prompt[:41], 2, 2, 2, TURN, 3, 3]
    assert run.answer(other) == computed(other, rewinds=False)
    assert run.timing.cached_tokens == 40


def test_the_states_of_one_sequence_do_not_fill_the_memory() -> None:
    run, prompt = Run(rewinds=False, memory=4000), [*tokens(40, 1), TURN, 3, 3]
    for turn in range(40):
        prompt = [*prompt, *run.answer(prompt), TURN, turn % 3, 3]
    stateful = [block for block in run.memory._blocks.values() if block.has_state]
    assert 2 < len(stateful) < 40 and run.timing.cached_tokens > 300
    assert min(block.start + block.num_tokens for block in stateful) == 40, "the first one stays"


@pytest.mark.parametrize("picture", [[], [-1 - 1000 * each for each in range(30)]], ids=["text", "picture"])
@pytest.mark.parametrize("rewinds", [True, False], ids=["rows", "recurrent"])
def test_after_a_restart_the_disk_has_it(tmp_path: Path, rewinds: bool, picture: list[int]) -> None:
    first, prompt = Run(rewinds=rewinds, folder=tmp_path), [*tokens(10, 2), *picture, *tokens(100, 1)]
    answer = first.answer(prompt)
    first.sequence.close()
    second, longer = Run(rewinds=rewinds, folder=tmp_path), [*prompt, *answer, 2, 2]
    assert second.answer(longer) == computed(longer, rewinds=rewinds)
    assert (second.timing.cached_tokens, second.timing.cached_from) == (len(prompt) + 5, "disk")
    assert first.said == second.said == []


def test_what_memory_has_no_room_for_is_written_at_the_end(tmp_path: Path) -> None:
    first, prompt = Run(memory=200, folder=tmp_path), tokens(100, 1)
    first.answer(prompt)
    first.sequence.close()
    second = Run(folder=tmp_path)
    second.answer([*prompt, 1])
    assert second.timing.cached_tokens == 100


class HangingDisk(DiskTier):
    """A tier whose disk does not answer until it is let go."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 1 << 22, {"id": 1}, lambda line: None)
        self.goes_on = threading.Event()

    def write(self, block: Block) -> bool:
        return self.goes_on.wait() and super().write(block)


def test_a_disk_that_hangs_is_left_alone_at_the_end(tmp_path: Path) -> None:
    cache, disk = FakeCache(), HangingDisk(tmp_path / "model")
    store = PrefixStore(cache, ROOT, MemoryTier(200), disk, lambda prompt: [], Limits(BLOCK, 0, flush_s=0.05))
    sequence = CachedTokens(cache, store)
    list(stepped(cache, sequence, tokens(100, 1), Likeliest(), Watch(), max_tokens=1, chunk=5))
    sequence.close()  # comes back
    assert not list(tmp_path.rglob("*.rows"))
    disk.goes_on.set()


@pytest.mark.parametrize("rewinds", [True, False], ids=["rows", "recurrent"])
@pytest.mark.parametrize("kind", ["rows", "state"])
def test_damaged_files_cost_time_and_no_more(tmp_path: Path, rewinds: bool, kind: str) -> None:
    first, prompt = Run(rewinds=rewinds, folder=tmp_path), tokens(100, 1)
    first.answer(prompt)
    first.sequence.close()
    for path in tmp_path.rglob(f"*.{kind}"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    second = Run(rewinds=rewinds, folder=tmp_path)
    assert second.answer([*prompt, 1]) == computed([*prompt, 1], rewinds=rewinds)
    assert bool(second.said) == (kind == "rows" or not rewinds)
    assert second.timing.cached_tokens == (0 if second.said else 100)


@pytest.mark.parametrize("rewinds", [True, False], ids=["rows", "recurrent"])
def test_short_prompts_are_neither_kept_nor_looked_up(rewinds: bool, tmp_path: Path) -> None:
    run = Run(rewinds=rewinds, folder=tmp_path, short=40)
    run.answer([*tokens(35, 1), TURN, 1, 1], max_tokens=2)
    run.sequence.close()
    assert len(run.memory) == 0 and not list(tmp_path.rglob("*.rows"))
    run = Run(rewinds=rewinds, folder=tmp_path, short=40)
    for prompt, reused in ((tokens(60, 1), 0), (tokens(60, 2), 0), (tokens(40, 1), 0), ([*tokens(60, 1), 1], 60)):
        assert run.answer(prompt) == computed(prompt, rewinds=rewinds)
        assert run.timing.cached_tokens == reused


def test_a_block_that_waits_for_the_disk_may_outlive_the_one_before_it() -> None:
    """As a disk is slow: what is to be written stays in memory, and what it follows may leave. Then that comes back."""
    run = Run()
    prompt = tokens(40, seed=1)
    wanted = run.answer(prompt)
    run.store.keep(run.sequence.tokens)
    first, second = list(run.memory._blocks.values())[-1:-3:-1]
    assert second.parent == first.digest
    second.pending = True
    run.memory.remove(first)
    run.store.keep(run.sequence.tokens)
    assert first.digest in run.memory and second.digest in run.memory
    assert run.memory.used_bytes == sum(block.num_bytes for block in run.memory._blocks.values())
    run.answer([3] * 30)
    assert run.answer(prompt) == wanted and run.timing.cached_from == "memory"


def test_what_is_forgotten_does_not_come_back() -> None:
    run, prompt = Run(), tokens(40, 1)
    run.answer(prompt)
    run.answer(tokens(40, 2))
    run.sequence.forget()
    run.answer(prompt)
    assert run.timing.cached_tokens == 0 and run.timing.cached_from == ""


def test_no_room_is_no_fault() -> None:
    run = Run(memory=ROW_BYTES)
    for seed in (1, 2, 1):
        assert run.answer(tokens(40, seed)) == computed(tokens(40, seed))
        assert run.timing.cached_tokens == 0


def test_borders_are_where_a_later_prompt_may_leave() -> None:
    prompt = [TURN, 1, 1, TURN, 1, TURN, 2]
    assert turn_borders(prompt, {TURN}) == [3, 5, 7]
    assert turn_borders([1, 2], {TURN}) == [2]
    assert turn_borders([1] * 9000, {TURN}) == [4096, 8192, 9000]
    assert Run(rewinds=True).store.borders(prompt) == []


prompts = st.lists(st.integers(0, TURN), min_size=1, max_size=40)
requests = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 60), prompts, st.integers(0, 12), st.integers(1, 9)),
    min_size=1,
    max_size=8,
)


def test_positions_are_no_token() -> None:
    """The kind of positions of a long sequence, 1, and a sequence that begins with the token 1."""
    run = Run(rewinds=False, limit=20)
    for prompt in ([1], [1, 2], [2] * 15):
        answer = run.answer(prompt, max_tokens=10)
        assert answer == computed(prompt, rewinds=False, max_tokens=10, limit=20)


@settings(max_examples=60, deadline=None)
@given(requests, st.booleans(), st.sampled_from([0, 300, 1200, 1 << 20]), st.booleans(), st.sampled_from([20, 4096]))
def test_tokens_are_those_of_a_model_that_keeps_nothing(
    wanted: list[tuple[int, int, list[int], int, int]], rewinds: bool, memory: int, with_disk: bool, limit: int
) -> None:
    """Each request begins as some earlier sequence, up to some place, and goes on otherwise; beyond the limit positions
    are others."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) if with_disk else None
        run, seen = Run(rewinds=rewinds, memory=memory, folder=folder, limit=limit), [list[int]()]
        for which, kept, rest, max_tokens, chunk in wanted:
            prompt = [*seen[which % len(seen)][:kept], *rest]
            answer = run.answer(prompt, max_tokens, chunk)
            assert answer == computed(prompt, rewinds=rewinds, max_tokens=max_tokens, limit=limit)
            seen.append([*prompt, *answer])
            if which == 5:  # a restart
                run.sequence.close()
                run = Run(rewinds=rewinds, memory=memory, folder=folder, limit=limit)
        run.sequence.close()
        assert run.said == []


def test_memory_is_given_back_and_taken_again() -> None:
    run = Run(memory=1 << 16)
    prompt = tokens(5 * BLOCK, seed=3)
    run.answer(prompt)
    run.store.keep(run.sequence.tokens)
    before = run.memory.used_bytes
    assert run.store.spare(before // 2) >= before // 2 > 0
    assert run.memory.used_bytes <= before - before // 2 and run.memory.used_bytes <= run.memory.budget_bytes
    again = run.answer(prompt)
    run.store.keep(run.sequence.tokens)
    assert run.memory.used_bytes <= before - before // 2, "it does not fill up while others need the memory"
    assert run.store.spare(-(1 << 20)) == 0 and run.memory.budget_bytes == 1 << 16
    assert run.answer(prompt) == again
    run.store.keep(run.sequence.tokens)
    assert run.memory.used_bytes >= before


def test_nothing_is_given_back_under_the_hands_of_a_request() -> None:
    run = Run()
    run.answer(tokens(5 * BLOCK, seed=3))
    run.store.keep(run.sequence.tokens)
    freed = list[int]()
    with run.store._in_use:
        other = threading.Thread(target=lambda: freed.append(run.store.spare(1 << 30)))
        other.start()
        other.join()
    assert freed == [0] and run.store.spare(1 << 30) > 0 and len(run.memory) == 0


@pytest.mark.parametrize(
    ("within", "stride"),
    [("prefixes/memory.py", 1), ("prefixes/", 5), ("sampling/loop.py", 5), ("sampling/cached_tokens.py", 5)],
)
@pytest.mark.parametrize("rewinds", [True, False])
def test_a_request_that_is_given_up_at_any_line_leaves_nothing_wrong(
    rewinds: bool, within: str, stride: int, tmp_path: Path
) -> None:
    """Of a store that is full: the request before it is kept in the place of others."""
    first, second = [TURN, *range(30)], [TURN, *range(20), TURN, 7, 8, 9]
    wanted = {tuple(prompt): computed(prompt, rewinds=rewinds) for prompt in (first, second, [*first, 3, 1])}

    def prepared(folder: Path) -> Run:
        run = Run(rewinds=rewinds, memory=40 * ROW_BYTES, folder=folder)
        run.answer([3] * 30)
        run.answer(first)
        return run

    whole = prepared(tmp_path / "whole")
    with places(lines=True, within=within) as counting:
        whole.answer(second)
    for number in range(1, counting.count, stride):
        run = prepared(tmp_path / str(number))
        with suppress(KeyboardInterrupt), places(number, lines=True, within=within) as given_up:
            run.answer(second)
        for prompt in ([*first, 3, 1], second, first) if number % 2 else (first, second, [*first, 3, 1]):
            assert run.answer(prompt) == wanted[tuple(prompt)], given_up.reached
        assert run.memory.used_bytes == sum(block.num_bytes for block in run.memory._blocks.values()), given_up.reached


def test_what_another_build_has_kept_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels were changed between two commits of one version: of a model in q4_0, 0.85 % of all numbers differed."""
    cache: Any = SimpleNamespace(layout=[[4, 64]])
    kept, found = Kept("0123", "bf16", "cpu avx512", 0), list[object]()
    for content in (b"one build", b"another", b"one build"):
        library = tmp_path / "_native.so"
        library.write_bytes(content)
        monkeypatch.setattr(prefix_opening, "_native", SimpleNamespace(__file__=str(library)))
        prefix_opening._engine.cache_clear()
        found.append(kept.identity(cache)["engine"])
    prefix_opening._engine.cache_clear()
    assert found[0] == found[2] != found[1]
