"""Counters that Prometheus reads from /metrics."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from moeinf.server.ask import Ended, Failed
from moeinf.server.http_errors import fault_of
from moeinf.server.turns.job import Job

_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """All counters of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._answers = Counter("moeinf_answers", "Requests to the model, by outcome", ["outcome"], registry=registry)
        self._tokens = Counter("moeinf_tokens", "Tokens, by kind", ["kind"], registry=registry)
        self._activations = Counter(
            "moeinf_expert_activations", "Experts that tokens used, by where they were", ["found"], registry=registry
        )
        self._read = Counter("moeinf_expert_read_bytes", "Bytes of experts read", ["reason"], registry=registry)
        self._stall = Counter("moeinf_stall_seconds", "Time that compute waited for experts", registry=registry)
        self._seconds = Counter("moeinf_model_seconds", "Time of the model, by phase", ["phase"], registry=registry)
        self._first = Histogram(
            "moeinf_first_token_seconds", "From a request's turn to its first token", buckets=_SECONDS,
            registry=registry,
        )  # fmt: skip
        self._waiting = Gauge("moeinf_waiting_requests", "Requests that wait for their turn", registry=registry)
        self._running = Gauge("moeinf_running_requests", "Requests that have had their turn", registry=registry)
        self._queued = Histogram(
            "moeinf_queue_seconds", "From a request to its turn", ["kind"], buckets=(0.01, *_SECONDS), registry=registry
        )
        self._loaded = Gauge("moeinf_model_loaded", "1 for each model that is open", ["model"], registry=registry)
        self._kept = Gauge(
            "moeinf_kept_prompt_bytes", "Memory with what is kept of earlier prompts", ["model"], registry=registry
        )

    def count(self, job: Job, event: Ended | Failed) -> None:
        """Called with the end of each job."""
        if job.waited_s is not None:
            self._queued.labels("background" if job.who.background else "chat").observe(job.waited_s)
        if isinstance(event, Failed):
            outcome = "cancelled" if job.cancelled else fault_of(event.error).kind
            self._answers.labels(outcome).inc()
            return
        completion = event.completion
        if completion is None:
            self._answers.labels("load").inc()
            return
        self._answers.labels("cancelled" if job.cancelled else completion.finish_reason).inc()
        stats = completion.stats
        self._tokens.labels("prompt").inc(stats.prompt_tokens)
        self._tokens.labels("prompt_cached").inc(stats.cached_tokens)
        self._tokens.labels("generated").inc(stats.generated_tokens)
        self._tokens.labels("drafted").inc(stats.drafts.drafted)
        self._tokens.labels("draft_accepted").inc(stats.drafts.accepted)
        for cache in (stats.prefill_cache, stats.decode_cache):
            self._activations.labels("resident").inc(cache.hits)
            self._activations.labels("elsewhere").inc(cache.misses)
            self._read.labels("demand").inc(cache.demand_bytes)
            self._read.labels("prefetch").inc(cache.prefetch_bytes)
            self._stall.inc(max(0.0, cache.stall_s))
        self._seconds.labels("prefill").inc(stats.prompt_s)
        self._seconds.labels("decode").inc(stats.decode_s)
        self._first.observe(stats.prompt_s)

    def text(self, *, running: int, waiting: int, loaded: Mapping[str, int]) -> bytes:
        """Prometheus's text format. running, waiting: requests at this moment. loaded: the open models by their names,
        and how many bytes of memory each has for what it keeps of earlier prompts."""
        self._running.set(running)
        self._waiting.set(waiting)
        self._loaded.clear()
        self._kept.clear()
        for name, kept_bytes in loaded.items():
            self._loaded.labels(name).set(1)
            self._kept.labels(name).set(kept_bytes)
        return generate_latest(self.registry)
