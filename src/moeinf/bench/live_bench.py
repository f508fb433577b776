"""Times a stored model on real text: prefill and decode, with a cold expert cache and with a warm one."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from moeinf import __version__
from moeinf.bench.decode_beside import byte_gain, decode_beside
from moeinf.bench.disk_speed import disk_bytes_per_s
from moeinf.bench.routing import recorded_routing
from moeinf.bench.rows import GpuFacts, ModelFacts, Row, Setting
from moeinf.config import RuntimeConfig, gpu_option
from moeinf.config.bench_options import BenchOptions
from moeinf.config.guess_options import RECORDED, GuessOptions
from moeinf.config.user_text import text_of
from moeinf.engine.completion import GenerationStats
from moeinf.engine.memory.device_plan import DevicePlan
from moeinf.engine.memory.footprint import kept_format
from moeinf.engine.memory.plan import wanted_context
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting, no_progress
from moeinf.engine.speed.weight_bytes import formats_text, token_bytes
from moeinf.engine.stored.outline import outline_of
from moeinf.errors import DeviceError, UsageError
from moeinf.forecast.bandwidth import memory_bytes_per_s
from moeinf.gpu.cuda import Gpu, find_cuda, without_advice
from moeinf.hardware import cpu_name
from moeinf.pull.mtp_layer import ensure_draft
from moeinf.runtime.cache.stats import CacheStats, DecodeStats
from moeinf.runtime.policy.predictors import NO_PREDICTOR
from moeinf.runtime.prefetch import MEASURED
from moeinf.store.files import drop_cached, errors_named
from moeinf.store.library import StoredModel
from moeinf.traces.replayed import RecordedRouting

if TYPE_CHECKING:
    from moeinf.gpu.open_gpu import OpenGpu


@dataclass(frozen=True, slots=True)
class Workload:
    """num_prompt tokens of text are prefilled, the num_decode that follow are fed one by one; `repeats` times warm."""

    num_prompt: int = 128
    num_decode: int = 64
    repeats: int = 3
    text_file: Path | None = None
    routing: Path | None = None  # of a trace, in place of the routers' choice
    guess: GuessOptions = RECORDED  # of look-ahead, where the trace has none
    parallel: tuple[int, ...] = ()  # how many are decoded side by side besides

    @classmethod
    def of(cls, options: BenchOptions, guess: GuessOptions) -> Workload:
        text_file, routing = (None if each is None else Path(each) for each in (options.prompt_file, options.routing))
        counts = options.counts()
        return cls(options.num_prompt, options.num_decode, options.repeats, text_file, routing, guess, counts)

    def text(self) -> str:
        """What is read. Raises UsageError for a file that cannot be read, or holds nothing."""
        return text_of("--prompt-file", self.text_file)

    @property
    def request_tokens(self) -> int:
        return self.num_prompt + self.num_decode


def run_bench(
    stored: StoredModel, config: RuntimeConfig, workload: Workload, report: Callable[[str], None] = lambda line: None
) -> list[Row]:
    """Rows for bench/bench_report.py: prefill and decode of the first request (cold), then of `repeats` more (warm).

    Decode is fed the text itself, so that every configuration routes the same tokens. Each request takes the next
    passage. Raises UsageError, before anything is measured, for a text or a length that cannot be.
    """
    text = workload.text()
    recorded = checked_routing(stored, config, workload)
    gpu = find_cuda(config.compute.devices[0], report)
    link, gather, memory, opened = 0.0, 0.0, 0.0, None
    if gpu and recorded:
        raise UsageError("--routing is for the CPU: on a GPU, kernels route; add --device cpu")
    if gpu:
        from moeinf.bench.device_rates import gpu_rates  # torch, which a run on the CPU does without
        from moeinf.gpu.open_gpu import open_gpu

        try:
            opened = open_gpu(gpu)
            report("measuring the GPU's memory and the link to it")
            link, gather, memory = gpu_rates(gpu)
        except DeviceError as error:
            if config.compute.device != "auto" or gpu_option(config):
                raise
            report(f"running on the CPU: {without_advice(error)}")
            gpu, opened, config = None, None, config.changed(device="cpu")
    report("loading")
    facts, load_ms, rounds, beside = _requests(stored, config, workload, text, report, opened, recorded)
    report("measuring the disk")  # now that the model is gone, and the peak of its memory noted
    disk = disk_bytes_per_s(stored, config)
    if not gpu:
        report("measuring the memory")
        memory = memory_bytes_per_s(config)
    setting: Setting = {
        **facts,
        "load_ms": load_ms,
        **_gpu_facts(gpu),
        "disk_gb_per_s": round(disk / 1e9, 3),
        "link_gb_per_s": round(link / 1e9, 3),
        "gather_gb_per_s": round(gather / 1e9, 3),
        "memory_gb_per_s": round(memory / 1e9, 3),
    }
    rows = []
    for cold, group in ((True, rounds[:1]), (False, rounds[1:])):
        rows += [_row(setting, cold, group, test) for test in ("pp", "tg") if group]
    return rows + [
        _row(setting, False, group, "tg", count, byte_gain(stored, count)) for count, group in beside.items()
    ]


def _check_admission(model: Model) -> None:
    """Raises UsageError where one was asked for, and nothing will be read ahead."""
    admission = model.config.experts.admission
    if admission and model.plan.num_slots == model.manifest.moe.total_experts:
        raise UsageError(
            f"--admission {admission} is of what is read ahead, and nothing is where all experts fit in memory; give a "
            "smaller --expert-cache"
        )


def _check_length(stored: StoredModel, config: RuntimeConfig, workload: Workload) -> None:
    """Raises UsageError for a passage that is longer than the context will be."""
    context, most = wanted_context(stored.manifest.info, config), stored.manifest.info.context_length
    wanted = workload.request_tokens
    if wanted > context:
        more = f", or raise --num-ctx (the model allows {most})" if context < most else "; the model allows no more"
        raise UsageError(
            f"-p {workload.num_prompt} and -n {workload.num_decode} are {wanted} tokens, the context is "
            f"{context}; lower them{more}"
        )


def checked_routing(stored: StoredModel, config: RuntimeConfig, workload: Workload) -> RecordedRouting | None:
    """The routing to replay, if one is given. Raises UsageError for a workload that cannot be, before it is begun."""
    _check_length(stored, config, workload)
    if workload.routing is None:
        if workload.guess != RECORDED:
            raise UsageError("guesses of look-ahead are drawn for a recorded routing: give --routing, too")
        return None
    num_tokens = workload.request_tokens * (workload.repeats + 1)
    return recorded_routing(workload.routing, stored.manifest.moe, config, num_tokens, workload.guess)


def _gpu_facts(gpu: Gpu | None) -> GpuFacts:
    if gpu is None:
        return {"backends": "CPU", "gpu_info": "", "cuda_driver": "", "gpu_bytes": 0}
    driver = f"{gpu.driver_version // 1000}.{gpu.driver_version % 1000 // 10}"
    return {"backends": "CUDA", "gpu_info": gpu.name, "cuda_driver": driver, "gpu_bytes": gpu.total_bytes}


@dataclass(frozen=True, slots=True)
class _Round:
    stats: GenerationStats
    read_gb: float  # by the reader of the disk or the copies to the GPU, while decoding and prefilling together
    busy_s: float


def _requests(
    stored: StoredModel,
    config: RuntimeConfig,
    workload: Workload,
    text: str,
    report: Callable[[str], None],
    gpu: OpenGpu | None,
    recorded: RecordedRouting | None,
) -> tuple[ModelFacts, float, list[_Round], dict[int, list[_Round]]]:
    """What all rows share, the ms of loading, and the requests, the first of which finds an empty expert cache; and
    those of several side by side, by their number."""
    config = replace(config, pictures=False, parallel=max(workload.parallel, default=1))
    ensure_draft(stored, config)
    with Model(stored, config, Reporting(step=report), gpu=gpu, preload=False, recorded=recorded) as model:
        _check_admission(model)
        passages, fill_s = passages_of(model, workload, text), 0.0
        _forget_pages(model, stored, report)
        rounds = []
        for number, (prompt, continuation) in enumerate(passages):
            report(f"request {number + 1} of {len(passages)} ({'warm' if number else 'cold'})")
            if recorded is not None:
                recorded.seek(number * workload.request_tokens)
            rounds.append(_measured(model, gpu, partial(model.replay, prompt, continuation)))
            fill_s += load_all(model) if number == 0 else 0.0  # as an opened model has it
        beside = _beside(model, gpu, workload, text, report)
        facts = _model_facts(model, stored, workload)
    return facts, round((rounds[0].stats.load_s + fill_s) * 1e3, 1), rounds, beside


def _beside(
    model: Model, gpu: OpenGpu | None, workload: Workload, text: str, report: Callable[[str], None]
) -> dict[int, list[_Round]]:
    """The rounds of each number of answers side by side, by turns and in another order each time."""
    counts, times = workload.parallel, max(1, workload.repeats)
    passages = itertools.cycle(passages_of(model, replace(workload, repeats=times * sum(counts)), text))
    found: dict[int, list[_Round]] = {count: [] for count in counts}
    for number in range(times):
        for count in counts[:: -1 if number % 2 else 1]:
            report(f"{count} side by side, {number + 1} of {times}")
            chosen = list(itertools.islice(passages, count))
            found[count].append(_measured(model, gpu, partial(decode_beside, model, chosen)))
    return found


def load_all(model: Model) -> float:
    """Reads the experts that are not resident yet, where all of them fit; returns the seconds that it took."""
    started = time.perf_counter()
    with model.generator.turns.alone():
        if model.plan.num_slots == model.manifest.moe.total_experts == model.tier.num_slots:
            model.tier.load_all(no_progress)
    return time.perf_counter() - started


def _forget_pages(model: Model, stored: StoredModel, report: Callable[[str], None]) -> None:
    """Asks the kernel to drop what it has of the experts' files, where reads go through its page cache."""
    if model.config.reading.direct_io and model.config.reading.reader == "native" and not model.runner.reader.notice:
        return  # O_DIRECT asks the disk
    report(
        "note: reads go through the page cache: the kernel is asked to forget the experts before the cold request, "
        "and warm requests may find them there"
    )
    for path in stored.shard_paths:
        with errors_named(path), path.open("rb") as file:
            drop_cached(file.fileno())


def _measured(model: Model, gpu: OpenGpu | None, run: Callable[[], GenerationStats]) -> _Round:
    def moved() -> tuple[int, float]:
        if gpu is not None:
            return gpu.copier.bytes_copied(), gpu.copier.busy_seconds()
        return model.runner.reader.bytes_read(), model.runner.reader.busy_seconds()

    bytes_before, busy_before = moved()
    stats = run()
    bytes_after, busy_after = moved()
    return _Round(stats, (bytes_after - bytes_before) / 1e9, busy_after - busy_before)


def passages_of(model: Model, workload: Workload, text: str) -> list[tuple[list[int], list[int]]]:
    """(prompt, continuation) of each request: consecutive passages, from the start again when the text ends."""
    ids = model.tokenizer.encode(text, bos=False)
    if len(ids) < 2:
        raise UsageError("the benchmark's text is empty; give a --prompt-file with more")
    size = workload.request_tokens
    whole = ids * (-(-size * (workload.repeats + 1) // len(ids)))
    starts = [size * number for number in range(workload.repeats + 1)]
    return [(whole[s : s + workload.num_prompt], whole[s + workload.num_prompt : s + size]) for s in starts]


def _model_facts(model: Model, stored: StoredModel, workload: Workload) -> ModelFacts:
    info, plan, outline = model.manifest.info, model.plan, outline_of(stored)
    return {
        "moeinf_version": __version__,
        "cpu_info": cpu_name(),
        "model_filename": model.name,
        "model_type": f"{info.architecture} {formats_text(outline)}",
        "model_size": stored.size_bytes,
        "model_n_params": info.num_params,
        "n_threads": model.kernels.threads,
        "isa": model.kernels.isa,
        "n_batch": plan.most_at_once,
        "type_k": kept_format(info, model.config),
        "type_v": kept_format(info, model.config),
        "n_ctx": plan.context,
        "n_prompt": workload.num_prompt,
        "n_gen": workload.num_decode,
        "policy": model.policy,
        "predictor": "off" if model.predictor == NO_PREDICTOR else model.predictor,
        "admission": "" if model.predictor == NO_PREDICTOR else model.config.experts.admission or MEASURED,
        "routing": "" if workload.routing is None else workload.routing.resolve().name,
        "approx": "" if model.runner.approx is None else str(model.runner.approx.within),
        "reader": model.runner.reader.backend,
        "expert_cache_mib": round(plan.cache_bytes / 2**20, 1),
        "experts": plan.num_slots,
        "vram_limit_bytes": plan.limit_bytes if isinstance(plan, DevicePlan) else 0,
        "host_experts": plan.host_slots if isinstance(plan, DevicePlan) else 0,
        "experts_total": model.manifest.moe.total_experts,
        "weight_bytes_per_token": token_bytes(outline),
    }


def _row(setting: Setting, cold: bool, rounds: Sequence[_Round], test: str, count: int = 0, gain: float = 1.0) -> Row:
    """count: of answers side by side, of which a step has as many tokens; 0: one request after the other. gain: see
    byte_gain."""
    stats = [r.stats for r in rounds]
    prefill, gpu = test == "pp", setting["backends"] != "CPU"
    tokens = [s.prompt_tokens if prefill else max(1, count) * len(s.token_s) for s in stats]
    seconds = [s.prompt_s if prefill else s.decode_s for s in stats]
    rates = [n / t for n, t in zip(tokens, seconds, strict=True)]
    cache = _total([s.prefill_cache if prefill else s.decode_cache for s in stats])
    read_bytes = cache.demand_bytes + cache.prefetch_bytes
    busy_s = sum(r.busy_s for r in rounds)
    rate = sum(r.read_gb for r in rounds) / busy_s if busy_s else 0.0
    missed = read_bytes / sum(seconds) / 1e9  # kernels fetch misses as well, which the copies' own counters do not see
    used = 0.0 if prefill or count > 1 else setting["weight_bytes_per_token"] * statistics.median(rates) / 1e9
    latencies = sorted(t * 1e3 for s in stats for t in s.token_s)
    return {
        **setting,
        "test": f"{test}{len(stats[0].token_s)} x {count}" if count else f"{test}{tokens[0]}",
        "cold": cold,
        "parallel": count,
        "samples_ts": [round(r, 3) for r in rates],
        "avg_ts": round(statistics.fmean(rates), 3),
        "median_ts": round(statistics.median(rates), 3),
        "stddev_ts": round(statistics.stdev(rates), 3) if len(rates) > 1 else 0.0,
        "each_ts": round(statistics.fmean(rates) / max(1, count), 3),
        "byte_gain": round(gain, 3),
        "ttft_ms": round(statistics.median(s.prompt_s for s in stats) * 1e3, 1),
        "itl_ms": {} if prefill else {f"p{p}": round(_percentile(latencies, p), 2) for p in (50, 90, 99)},
        "expert_hit_rate": round(cache.hit_rate, 4),
        **_others(() if prefill else [s.decode_cache for s in stats]),
        "hits": cache.hits,
        "misses": cache.misses,
        "late_hits": cache.late_hits,
        "prefetches": cache.prefetches,
        "prefetches_wasted": cache.prefetches_wasted,
        "stall_s": round(cache.stall_s, 4),
        "total_s": round(sum(seconds), 4),
        "bytes_per_token": round(read_bytes / max(1, sum(tokens))),
        "read_gb_per_s": round(rate, 3),
        "disk_share": 0.0 if gpu else _share(rate, setting["disk_gb_per_s"]),
        "missed_gb_per_s": round(missed, 3),
        "link_share": _share(missed, setting["link_gb_per_s"]),
        "weights_gb_per_s": round(used, 3),
        "memory_share": _share(used, setting["memory_gb_per_s"]),
        "peak_rss_bytes": max(s.peak.rss for s in stats),
        "profile_ms": {} if prefill else _profile(stats),
    }


class _Others(TypedDict):
    lru_hit_rate: float | None
    best_hit_rate: float | None


def _others(decoded: Sequence[DecodeStats]) -> _Others:
    """What other caches would have hit, where that is known of every request."""
    compared = sum(each.compared for each in decoded)
    if not all(each.compared for each in decoded) or not compared:
        return {"lru_hit_rate": None, "best_hit_rate": None}
    return {
        "lru_hit_rate": round(sum(each.lru_hits for each in decoded) / compared, 4),
        "best_hit_rate": round(sum(each.best_hits for each in decoded) / compared, 4),
    }


def _profile(stats: Sequence[GenerationStats]) -> dict[str, float]:
    """Mean milliseconds of a decode step by where they went."""
    steps = max(1, sum(len(s.token_s) for s in stats))
    names = sorted({name for s in stats for name in s.decode_laps})
    return {name: round(sum(s.decode_laps.get(name, 0.0) for s in stats) * 1e3 / steps, 3) for name in names}


def _share(rate: float, limit: float) -> float:
    return round(rate / limit, 3) if limit else 0.0


def _total(parts: Sequence[CacheStats]) -> CacheStats:
    return CacheStats(**{f.name: sum(getattr(part, f.name) for part in parts) for f in fields(CacheStats)})


def _percentile(ordered: Sequence[float], percent: int) -> float:
    """Nearest rank."""
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * percent // 100) - 1))] if ordered else 0.0
