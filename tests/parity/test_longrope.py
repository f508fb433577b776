"""Positions that differ by length: short ones up to the limit, whatever there is room for, and all others beyond it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from moeinf.models.layers.decoder import Decoder
from moeinf.models.layers.kv_cache import NewTokens
from moeinf.sampling.cached_tokens import CachedTokens
from moeinf.sampling.loop import Monitor, Timing
from moeinf.types import Float32Array
from tests.support.configs.mixtral import MIXTRAL
from tests.support.configs.phimoe import LONG, PHI
from tests.support.pairs.decoders import PROMPT, Pair
from tests.support.pairs.on_device import on_device
from tests.support.stepping import stepped

ROOM = 256
LIMIT = LONG["original_max_position_embeddings"]
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}


class Unwatched(Monitor):
    def __init__(self) -> None:
        self.timing = Timing()

    def check(self) -> None: ...

    def gives_way(self) -> bool:
        return False

    def begin(self, phase: object) -> None: ...

    def reading(self, start: int, end: int, total: int) -> None: ...

    def prefilled(self, done: int, total: int) -> None: ...


class Running:
    """A decoder with a cache, as the loop runs it."""

    def __init__(self, network: Decoder, room: int = ROOM) -> None:
        self.network, self.cache, self.calls = network, network.new_cache(room), list[int]()
        self.sequence = CachedTokens(self.cache)

    def step(self, parts: Sequence[NewTokens], between_layers: Callable[[], None]) -> Float32Array:
        self.calls += [len(part.ids) for part in parts]
        return self.network.step(parts, between_layers)

    def tokens(self, prompt: Sequence[int], count: int, chunk: int = 512) -> list[int]:
        monitor, chooser = Unwatched(), Greedy()
        return list(stepped(self, self.sequence, prompt, chooser, monitor, max_tokens=count, chunk=chunk))


class Greedy:
    def sample(self, logits: Float32Array, history: Sequence[int]) -> int:
        return int(logits.argmax())


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(PHI | {"rope_parameters": LONG} | LONG_BESIDE, tmp_path_factory.mktemp("checkpoint"))


LONG_BESIDE = {"original_max_position_embeddings": LIMIT}  # where published code looks before it begins anew


def network_of(pair: Pair, device: bool) -> Decoder:
    return on_device(pair)[0] if device else pair.ours


@torch.inference_mode()
@pytest.mark.parametrize("device", [False, True], ids=["cpu", "device"])
@pytest.mark.parametrize("room", [LIMIT + 1, ROOM])
@pytest.mark.parametrize("tokens", [3, LIMIT - 1, LIMIT, LIMIT + 1])
@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_logits_are_those_of_a_sequence_of_that_length_however_much_room_there_is(
    pair: Pair, room: int, tokens: int, chunk: int, device: bool
) -> None:
    model = network_of(pair, device)
    cache, prompt = model.new_cache(room), PROMPT[:tokens]
    chunks = [prompt[at : at + chunk] for at in range(0, tokens, chunk)]
    ours = [torch.from_numpy(model.forward(each, cache, of_tokens=tokens, last_only=False)) for each in chunks]
    theirs = pair.theirs(torch.tensor([prompt])).logits[0]
    assert (torch.cat(ours) - theirs).abs().max() < 1e-4


@torch.inference_mode()
@pytest.mark.parametrize("device", [False, True], ids=["cpu", "device"])
@pytest.mark.parametrize("chunk", [4, 64])
def test_an_answer_that_grows_across_the_limit_is_that_of_published_code(pair: Pair, chunk: int, device: bool) -> None:
    prompt = PROMPT[: LIMIT - 6]
    theirs = pair.theirs.generate(
        torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert Running(network_of(pair, device)).tokens(prompt, 20, chunk) == theirs[0, len(prompt) :].tolist()


@torch.inference_mode()
def test_a_sequence_is_computed_anew_once_and_only_where_its_positions_change(pair: Pair) -> None:
    running = Running(pair.ours)
    running.tokens(PROMPT[: LIMIT - 2], 6)
    assert running.calls == [LIMIT - 2, 1, 1, LIMIT + 1, 1, 1]


@torch.inference_mode()
def test_what_a_longer_sequence_left_in_the_cache_is_not_reused_for_a_shorter_one(pair: Pair) -> None:
    running, prompt = Running(pair.ours), PROMPT[: LIMIT - 3]
    running.tokens(PROMPT, 4)
    running.calls.clear()
    again = running.tokens(prompt, 3)
    assert again == Running(pair.ours).tokens(prompt, 3) and running.calls[0] == len(prompt)
    running.calls.clear()
    assert running.tokens(prompt, 3) == again and running.calls[0] == 1


@torch.inference_mode()
def test_dynamic_positions_are_plain_up_to_the_limit_however_much_room_there_is(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    config = MIXTRAL | {"head_dim": 16, "max_position_embeddings": LIMIT, "rope_parameters": DYNAMIC}
    pair = Pair(config, tmp_path_factory.mktemp("dynamic"))
    assert pair.info.context_length == 4 * LIMIT
    theirs = pair.theirs(torch.tensor([PROMPT[:LIMIT]])).logits[0]
    ours = pair.ours.forward(PROMPT[:LIMIT], pair.ours.new_cache(4 * LIMIT), last_only=False)
    assert (torch.from_numpy(ours) - theirs).abs().max() < 1e-4
    whole = pair.ours.forward(PROMPT, pair.ours.new_cache(len(PROMPT)), last_only=False)
    assert (torch.from_numpy(whole) - pair.theirs(torch.tensor([PROMPT])).logits[0]).abs().max() < 1e-4
