"""A small model guesses what it would answer itself, and only for a model with its vocabulary."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from moeinf.engine.answers.model_draft import READ_AT_ONCE, ModelDrafter, common_tokens, drafts_by
from moeinf.errors import UsageError
from moeinf.sampling.cached_tokens import CachedTokens
from moeinf.sampling.speculation.drafts import NOTHING
from moeinf.types import Float32Array
from tests.support.fake_cache import FakeCache as FakeKvCache


class FakeCache:
    def __init__(self) -> None:
        self.tokens: list[int] = []

    def truncate(self, length: int) -> int:
        del self.tokens[length:]
        return len(self.tokens)


class Counting:
    """After a token comes the next number; the last of 10 is no token of the other model."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.num_caches = 0

    def new_cache(self, capacity: int) -> FakeCache:
        self.cache = FakeCache()
        self.num_caches += 1
        return self.cache

    def forward(self, ids: Sequence[int], cache: FakeCache, of_tokens: int = 0) -> Float32Array:
        cache.tokens += ids
        self.read += ids
        logits = np.zeros((1, 10), np.float32)
        logits[0, (ids[-1] + 1) % 10], logits[0, 9] = 1, 2
        return logits


def test_it_guesses_what_it_would_answer_and_goes_back_where_it_was_wrong() -> None:
    network = Counting()
    drafter = ModelDrafter(cast(Any, network), context=12, num_tokens=9)
    assert drafter.draft([1, 2, 3, 4, 5], 3).ids == [6, 7, 8]
    assert network.cache.tokens == [1, 2, 3, 4, 5, 6, 7]
    assert drafter.draft([1, 2, 3, 4, 5, 6, 2], 2).ids == [3, 4]
    assert network.cache.tokens == [1, 2, 3, 4, 5, 6, 2, 3]
    assert drafter.draft([1, 2, 3, 4, 5, 6, 2], 1).ids == [3]  # all that it has read
    assert drafter.draft([1] * 10, 3).ids == () and drafter.draft([1, 9], 3).ids == ()  # no room; no token of its own


def test_the_next_answer_of_a_sequence_begins_where_the_last_one_ended() -> None:
    network = Counting()
    begin = drafts_by(cast(Any, network), context=12, num_tokens=9)
    sequences = [CachedTokens(FakeKvCache()) for _ in range(2)]
    drafter = begin(sequences[0])
    assert drafter.draft([1, 2, 3], 1).ids == [4]
    drafter.close()
    network.read.clear()
    assert begin(sequences[0]).draft([1, 2, 3, 4, 5], 1).ids == [6] and network.read == [4, 5]
    assert begin(sequences[1]).draft([1, 2], 1).ids == [3] and network.num_caches == 2


def test_a_long_prompt_is_read_piece_by_piece_before_it_guesses() -> None:
    network = Counting()
    drafter = ModelDrafter(cast(Any, network), context=400, num_tokens=9)
    prompt = [1 + i % 8 for i in range(2 * READ_AT_ONCE + 2)]
    for pieces in (1, 2):
        assert drafter.draft(prompt, 2) == NOTHING and network.read == prompt[: pieces * READ_AT_ONCE]
    assert drafter.draft(prompt, 2).ids == [3, 4]


def stored(folder: Path, name: str, vocabulary: object, added: object = ()) -> Any:
    path = folder / name
    path.mkdir()
    said = {"model": {"vocab": vocabulary}, "added_tokens": added}
    (path / "tokenizer.json").write_text(json.dumps(said))
    return SimpleNamespace(path=path, name=name)


def test_vocabularies_may_differ_at_their_ends_alone(tmp_path: Path) -> None:
    small = stored(tmp_path, "small", {"a": 0, "b": 1}, [{"id": 2, "content": "<end>"}])
    same = stored(tmp_path, "same", [["a", 0.0], ["b", -1.0], ["<end>", 0.0], ["more", 0.0]])
    other = stored(tmp_path, "other", {"a": 0, "c": 1, "<end>": 2})
    longer = stored(tmp_path, "longer", {"a": 0, "b": 1, "<end>": 2} | {f"t{i}": i for i in range(3, 140)})
    assert common_tokens(small, same) == common_tokens(same, small) == 3
    with pytest.raises(UsageError, match=r"small and other have different vocabularies \(token 1 is 'b' and 'c'\)"):
        common_tokens(small, other)
    with pytest.raises(UsageError, match="3 and 140 tokens"):
        common_tokens(small, longer)
    (small.path / "tokenizer.json").write_text("[]")
    with pytest.raises(UsageError, match="the tokens of small cannot be compared"):
        common_tokens(small, same)
