"""A model is opened on a GPU, used and closed many times: nothing adds up, whatever ended its answers."""

from __future__ import annotations

import gc
import os
import resource
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from moeinf.engine.model import Model
from moeinf.store.library import StoredModel
from tests.support.gpu.emulated_gpu import in_fours, opened

TIMES = int(os.environ.get("REOPENINGS", "200"))
SETTLED = 15  # by then allocators and caches have what they keep
MOST_KIB = 12 << 10  # a model's dense weights, cache and activations are 40 MiB: a few that stay would show
WAYS: tuple[dict[str, Any], ...] = (
    {"expert_cache": "30%"},  # one graph a token
    {"expert_cache": "30%", "host": 20},  # layer by layer, and from the disk
    {"expert_cache": "100%"},
)


def test_two_hundred_openings_leave_memory_threads_and_files_as_they_were(demo: StoredModel) -> None:
    wanted: dict[int, list[int]] = {}
    before = (0, 0, 0)
    for number in range(TIMES):
        way = number % len(WAYS)
        with opened(demo, in_fours(demo), context=128, prefill_chunk=16, **WAYS[way]) as model:
            given_up(model)
            if number % 4 == 1:
                run_out_of_memory(model)
            found = tokens(model)
            assert found == wanted.setdefault(way, found)
        if number == SETTLED:
            before = taken()
    after = taken()
    assert after[1:] == before[1:], "threads, and files that are open"
    assert after[0] - before[0] < MOST_KIB, f"{after[0] - before[0]} KiB more after {TIMES - SETTLED} openings"


def tokens(model: Model) -> list[int]:
    params = model.params(temperature=0.0, num_predict=6, stop=())
    return list(model.generate("Once upon a time", params).token_ids)


def given_up(model: Model) -> None:
    """An answer of which nobody wants the rest."""
    pieces = model.stream("There was a fisherman", model.params(temperature=0.0, num_predict=20, stop=()))
    assert list(islice(pieces, 2))
    pieces.close()  # type: ignore[attr-defined]


def run_out_of_memory(model: Model) -> None:
    """Slots are given back, as for another program on the card, and the step goes on."""
    run: Any = model.runner
    num_slots = run.tier.num_slots
    run._shrink(torch.OutOfMemoryError("CUDA out of memory"))
    assert run.tier.num_slots < num_slots


def taken() -> tuple[int, int, int]:
    """KiB of memory that the process has, its threads, and its open files."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024, threading.active_count(), len(os.listdir("/proc/self/fd"))
