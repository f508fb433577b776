"""What a row of a benchmark holds, key by key; bench/columns.py says what each means."""

from __future__ import annotations

from typing import TypedDict


class ModelFacts(TypedDict):
    """The model and the configuration, the same in all rows."""

    moeinf_version: str
    cpu_info: str
    model_filename: str
    model_type: str
    model_size: int
    model_n_params: int
    n_threads: int
    isa: str
    n_batch: int
    type_k: str
    type_v: str
    n_ctx: int
    n_prompt: int
    n_gen: int
    policy: str
    predictor: str
    admission: str
    routing: str
    approx: str
    reader: str
    expert_cache_mib: float
    experts: int
    vram_limit_bytes: int
    host_experts: int
    experts_total: int
    weight_bytes_per_token: float


class GpuFacts(TypedDict):
    """The GPU, or that there is none."""

    backends: str
    gpu_info: str
    cuda_driver: str
    gpu_bytes: int


class Setting(ModelFacts, GpuFacts):
    """What all rows share, with the measured rates of the machine."""

    load_ms: float
    disk_gb_per_s: float
    link_gb_per_s: float
    gather_gb_per_s: float
    memory_gb_per_s: float


class Row(Setting):
    """One test, cold or warm: a line of the report."""

    test: str
    cold: bool
    parallel: int
    samples_ts: list[float]
    avg_ts: float
    median_ts: float
    stddev_ts: float
    each_ts: float
    byte_gain: float
    ttft_ms: float
    itl_ms: dict[str, float]
    expert_hit_rate: float
    lru_hit_rate: float | None
    best_hit_rate: float | None
    hits: int
    misses: int
    late_hits: int
    prefetches: int
    prefetches_wasted: int
    stall_s: float
    total_s: float
    bytes_per_token: int
    read_gb_per_s: float
    disk_share: float
    missed_gb_per_s: float
    link_share: float
    weights_gb_per_s: float
    memory_share: float
    peak_rss_bytes: int
    profile_ms: dict[str, float]  # empty for prefill, as itl_ms is
