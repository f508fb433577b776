"""Hit rates of the eviction policies over a recorded trace, as a table."""

from __future__ import annotations

from pathlib import Path

from moeinf.bench.belady import BOUND, Belady
from moeinf.bench.simulate import replay
from moeinf.bench.traces import Trace, load_trace
from moeinf.errors import UsageError
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.policy.eviction import POLICIES, make_policy
from moeinf.runtime.policy.trace import RequestRecorder
from moeinf.terminal.screen import table


def hit_rate_table(folder: Path, percents: str, policies: str, max_tokens: int | None) -> list[str]:
    """A row a policy, a column a cache size. Raises UsageError for what is no trace, size or policy."""
    shares, names = _shares(percents), _names(policies)
    trace = load_trace(folder, max_tokens)
    slots = [max(trace.shape.top_k, round(trace.shape.total_experts * share / 100)) for share in shares]
    header = ["policy", *(f"{share:g}% ({n} experts)" for share, n in zip(shares, slots, strict=True))]
    rows = [[name, *_hit_rates(trace, slots, name)] for name in names]
    shape = trace.shape
    title = (
        f"{trace.name}: {trace.num_tokens} tokens, {shape.num_layers} layers x {shape.experts_text} experts, "
        f"top-{shape.top_k}; share of activations whose expert was resident, without prefetch"
    )
    return [title, "", *table([header, *rows])]


def _hit_rates(trace: Trace, slots: list[int], name: str) -> list[str]:
    collection = ActivationCollection(trace.shape)
    policy = Belady(trace) if name == BOUND else make_policy(name, trace.shape, collection)
    recorder = RequestRecorder(trace.shape, collection.add)
    return [f"{100 * stats.hit_rate:.1f}%" for stats in replay(trace, slots, policy, recorder)]


def _names(text: str) -> list[str]:
    known = (*POLICIES, BOUND)
    names = list(known) if text == "all" else text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"unknown policy {unknown[0]!r}; known: all, {', '.join(known)}")
    return names


def _shares(text: str) -> list[float]:
    try:
        shares = [float(part.rstrip("%")) for part in text.split(",")]
    except ValueError:
        shares = []
    if not shares or not all(0 < share <= 100 for share in shares):
        raise UsageError(f"--cache {text!r} is not a list of percents; write for example 10,20,35,50")
    return shares
