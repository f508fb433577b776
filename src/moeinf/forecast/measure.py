"""Measures what this machine gives: its disk, its memory, its products, and what a layer costs beside its weights."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from moeinf._native import Kernels
from moeinf.config import RuntimeConfig
from moeinf.engine.build_context import open_kernels
from moeinf.engine.model import Model
from moeinf.engine.speed.kept import Report
from moeinf.engine.speed.kernel_rates import measure_reading
from moeinf.engine.speed.rates import Conditions, Products, Rates
from moeinf.engine.stored.outline import outline_of
from moeinf.errors import DiskSpaceError, OutOfMemoryError
from moeinf.forecast.bandwidth import memory_bytes_per_s
from moeinf.forecast.products import FORMATS, MAIN_KINDS, SPAN_BYTES, ProductBench
from moeinf.hardware import machine
from moeinf.pull.pull import pull
from moeinf.pull.steps import free_bytes
from moeinf.runtime.io.read_rate import read_rate
from moeinf.store.files import errors_named, make_folders, write_fully
from moeinf.store.library import Library, StoredModel
from moeinf.store.processes.leftovers import scratch_file, scratch_folder
from moeinf.store.spread.whole import divided_copy
from moeinf.text.quantities import shortage_text, size_text
from moeinf.types import Format

READ_BYTES: Final = (256 << 10, 1 << 20, 4 << 20, 16 << 20)  # of one read: the sizes of experts
_IN_FLIGHT: Final = 8  # about as many as a layer asks for at once
_READ_S: Final = 0.25
_ROOM_BYTES: Final = 128 << 20  # that reads go to: more than caches hold
_READ_ROUNDS: Final = 3
_FILE_BYTES: Final = 512 << 20  # of the file that is read where the store has no experts to speak of
_LEAST_FILE_BYTES: Final = 64 << 20
_WRITE_S: Final = 4.0
_PIECE_BYTES: Final = 16 << 20
_TURNS: Final = 2  # of the products
_PROMPT_TOKENS: Final = 64
_DECODE_TOKENS: Final = 96
_STREAMED: Final = "33%"  # of the embedded model's experts in memory


def measure(home: Path, config: RuntimeConfig, report: Report = lambda line: None) -> Rates:
    """Takes about fifteen seconds, a quarter of the free memory or 512 MiB, and up to 512 MiB of disk for a moment.

    Raises DiskSpaceError, OutOfMemoryError where the machine has no room for that, StoreError.
    """
    here = machine()
    kernels = open_kernels(config.compute.threads or here.cores, config.compute.isa)
    conditions = Conditions.now(kernels, here)
    span = min(SPAN_BYTES, here.available_bytes // 4)
    if span < _LEAST_FILE_BYTES:
        raise OutOfMemoryError(
            f"not enough memory to measure with: {size_text(4 * _LEAST_FILE_BYTES)} needed, "
            f"{size_text(here.available_bytes)} available ({here.limited_by}); free some"
        )
    report("measuring the disk")
    disk = disk_rates(home, config)
    report("measuring the memory")
    memory = memory_bytes_per_s(config)
    experts, linear = _products(kernels, span, report)
    reading = measure_reading(kernels, here, MAIN_KINDS, report)
    report("measuring a model")
    rates = Rates(conditions, disk, config.reading.direct_io, memory, experts, linear, {}, *_layers(config))
    return rates.with_reading(reading)


def _products(
    kernels: Kernels, span_bytes: int, report: Report
) -> tuple[dict[Format, Products], dict[Format, Products]]:
    """The best of two turns, some seconds apart: another program may have the cores for a while."""
    bench = ProductBench(kernels, span_bytes)
    experts: dict[Format, Products] = {}
    linear: dict[Format, Products] = {}
    for _ in range(_TURNS):
        for format in FORMATS:
            report(f"measuring products with {format}")
            for found, products in ((experts, bench.experts(format)), (linear, bench.linear(format))):
                found[format] = products.best(found.get(format, products))
    return experts, linear


def disk_rates(home: Path, config: RuntimeConfig) -> dict[int, float]:
    """Bytes a second of the disk of a store, or of a folder, by bytes of one read. Raises as `measure` does."""
    with _files(home) as paths:
        sizes = [path.stat().st_size for path in paths]
        rates: dict[int, list[float]] = {span: [] for span in READ_BYTES}
        for _ in range(_READ_ROUNDS):  # by turns, as some disks read faster for the first second
            for span, found in rates.items():
                found.append(
                    read_rate(paths, sizes, span, config, in_flight=_IN_FLIGHT, room_bytes=_ROOM_BYTES, limit_s=_READ_S)
                )
        return {span: statistics.median(found) for span, found in rates.items()}


@contextmanager
def _files(home: Path) -> Iterator[list[Path]]:
    """The experts of the largest stored model, or else a file that is written for it.

    Small experts serve, too, where nothing can be written. A GGUF file that is used where it lies may have gone.
    """
    stored = [each for each in Library(home).list() if divided_copy(each) is None]  # what lies elsewhere reads as holes
    there = [each for each in stored if all(path.is_file() for path in each.shard_paths)]
    largest = max(there, key=_expert_bytes, default=None)
    known = 0 if largest is None else _expert_bytes(largest)
    if largest is not None and (known >= _FILE_BYTES or (known >= _LEAST_FILE_BYTES and not _has_room(home))):
        yield largest.shard_paths
        return
    with errors_named(home):
        make_folders(home)
        with scratch_file(home) as (fd, path):
            if not _has_room(home):
                raise DiskSpaceError(
                    f"not enough disk space in {home} to measure with: "
                    f"{shortage_text(4 * _LEAST_FILE_BYTES, free_bytes(home))}; free some, or set MOEINF_HOME"
                )
            _write(fd, min(_FILE_BYTES, free_bytes(home) // 4) // _PIECE_BYTES * _PIECE_BYTES)
            yield [path]


def _has_room(home: Path) -> bool:
    """For a file to measure with; not on a disk that is read-only."""
    return os.access(home, os.W_OK) and free_bytes(home) >= 4 * _LEAST_FILE_BYTES


def _expert_bytes(stored: StoredModel) -> int:
    return sum(stored.shard_sizes)


def _write(fd: int, num_bytes: int) -> None:
    """Writes so many bytes, or as many as four seconds allow, of random bits: nothing can be left out or packed."""
    piece = np.random.default_rng(0).bytes(_PIECE_BYTES)
    started = time.perf_counter()
    for at in range(0, num_bytes, _PIECE_BYTES):
        if at >= _LEAST_FILE_BYTES and time.perf_counter() - started > _WRITE_S:
            break
        write_fully(fd, piece, at, Path("the file to measure with"))
        os.fsync(fd)


def _layers(config: RuntimeConfig) -> tuple[float, float]:
    """Seconds of a layer in a decode step beside its weights, with all experts resident and with a third of them.

    Measured on the embedded model, whose weights stay in the caches and take next to no time.
    """
    with scratch_folder() as folder:
        stored = pull("demo", home=folder)
        outline = outline_of(stored)
        found = []
        for cache in ("100%", _STREAMED):
            asked = RuntimeConfig.of(
                device="cpu",
                threads=config.compute.threads,
                isa=config.compute.isa,
                expert_cache=cache,
                direct_io=config.reading.direct_io,
            )
            with Model(stored, asked) as model:
                ids = [1 + number % 1000 for number in range(_PROMPT_TOKENS + _DECODE_TOKENS)]
                stats = model.replay(ids[:_PROMPT_TOKENS], ids[_PROMPT_TOKENS:])
            stall_s = stats.decode_laps.get("stall", 0.0) / max(1, len(stats.token_s))
            beside = statistics.median(stats.token_s) - stall_s
            found.append(max(0.0, beside) / outline.manifest.info.num_layers)
    return found[0], max(found)
