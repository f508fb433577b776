"""Rows of a benchmark as a table, as Markdown in llama-bench's manner, as CSV or as JSON."""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from itertools import compress

from moeinf.bench.rows import Row
from moeinf.errors import UsageError
from moeinf.terminal.screen import table, wrapped
from moeinf.text.quantities import binary_size_text

WIDTH = 80  # of a terminal

_SPEED = ("cache", "test", "t/s", "TTFT ms", "p50 ms", "p90 ms", "p99 ms", "of memory")
_NOT_SPEED = ("cache", "test", "hit", "late", "stall s", "MiB/token", "GB/s", "of disk", "of link", "RSS GB")
_LEGEND = (
    "cold: the first request, with an empty expert cache; warm: the others.",
    "t/s: tokens a second; TTFT: time to the first token; p50, p90, p99: percentiles of the time of a decoded token; "
    "of memory: bytes of weights used a second, as a share of the measured rate.",
    "hit: activations whose expert was in the cache; late: misses whose expert was already on its way; "
    "stall: time spent waiting for experts; MiB/token: experts read for a token; RSS: most memory of the process.",
)
_LEGEND_OF_DISK = "GB/s: of the reader while it reads; of disk: that as a share of the measured rate."
_LEGEND_OF_LINK = (
    "GB/s: of what crossed the link to the GPU, over the whole time; of link: that as a share of the measured rate."
)


def check_form(form: str) -> None:
    """Raises UsageError for a form that is not in FORMS."""
    if form not in FORMS:
        raise UsageError(f"unknown output {form!r}; known: {', '.join(FORMS)}")


def format_rows(rows: Sequence[Row], form: str) -> str:
    """The whole report without a newline at its end. Raises UsageError as check_form does."""
    check_form(form)
    return FORMS[form](rows)


def _as_table(rows: Sequence[Row]) -> str:
    """A summary of two lines, two tables of at most 80 columns, and what their columns mean."""
    if not rows:
        return ""
    header, cells = _header(rows[0]), [_cells(row) for row in rows]
    tables = [
        table([list(compress(line, [name in columns for name in header])) for line in (header, *cells)], gap=2)
        for columns in (_SPEED, _NOT_SPEED)
    ]
    rates = _LEGEND_OF_LINK if _on_gpu(rows[0]) else _LEGEND_OF_DISK
    legend = "\n".join(textwrap.fill(text, WIDTH, subsequent_indent="  ") for text in (*_LEGEND, rates))
    parts = (wrapped(_title(rows[0]), WIDTH), "\n".join(_summary(rows)), *map("\n".join, tables), legend)
    return "\n\n".join(parts)


def _summary(rows: Sequence[Row]) -> list[str]:
    """`decode 64: cold 30.10, warm 33.20 tokens/s`, and the same of prefill."""
    lines = []
    for kind, verb in (("pp", "prefill"), ("tg", "decode")):
        of_kind = [row for row in rows if row["test"].startswith(kind) and not row["parallel"]]
        rates = ", ".join(f"{'cold' if row['cold'] else 'warm'} {row['avg_ts']:.2f}" for row in of_kind)
        hits = ", ".join(f"{100 * row['expert_hit_rate']:.1f}%" for row in of_kind)
        approx = _behind(of_kind[0]["approx"]) if kind == "tg" and of_kind else ""  # prompts are exact
        if of_kind:
            lines.append(f"{verb} {of_kind[0]['test'][2:]}: {rates} tokens/s; expert hits {hits}{approx}")
            lines += _others(of_kind[-1])
    for row in rows:
        if row["parallel"]:
            rates = f"{row['avg_ts']:.2f} tokens/s together, {row['each_ts']:.2f} each"
            lines.append(
                f"{row['parallel']} side by side: {rates}; bytes of weights allow {row['byte_gain']:.2f} times one"
                f"{_behind(row['approx'])}"
            )
    return lines


def _others(row: Row) -> list[str]:
    """What other caches would have hit; nothing where that is not known."""
    if row["lru_hit_rate"] is None or row["best_hit_rate"] is None:
        return []
    cold = "cold" if row["cold"] else "warm"
    return [f"caches as large, {cold}: LRU {row['lru_hit_rate']:.1%}, the best possible {row['best_hit_rate']:.1%}"]


def _as_markdown(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    header = ["model", "size", "params", "backend", "ecache", *_header(rows[0])]
    lines = [header, ["---"] * len(header), *([*_model_cells(row), *_cells(row)] for row in rows)]
    footer = f"build: moeinf {rows[0]['moeinf_version']}{_behind(rows[0]['approx'])}"
    return "\n".join([*("| " + " | ".join(cells) + " |" for cells in lines), "", footer])


def _as_csv(rows: Sequence[Row]) -> str:
    """Nested values flat: itl_ms.p50; lists with a space between. Every row has every column."""
    flat = [_flat(row) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue().rstrip("\n")


def _as_json(rows: Sequence[Row]) -> str:
    return json.dumps(list(rows), indent=2)


def _as_json_lines(rows: Sequence[Row]) -> str:
    return "\n".join(map(json.dumps, rows))


FORMS: Mapping[str, Callable[[Sequence[Row]], str]] = {
    "table": _as_table,
    "md": _as_markdown,
    "csv": _as_csv,
    "json": _as_json,
    "jsonl": _as_json_lines,
}


def _header(row: Row) -> list[str]:
    """GB/s: the disk's while it reads, or what missing experts take of the link to a GPU, over the whole time."""
    return [
        "cache",
        "test",
        "t/s",
        "TTFT ms",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "hit",
        "late",
        "stall s",
        "MiB/token",
        "GB/s",
        "of link" if _on_gpu(row) else "of disk",
        "of memory",
        "RSS GB",
    ]


def _on_gpu(row: Row) -> bool:
    return bool(row["backends"] != "CPU")


def _title(row: Row) -> str:
    return (
        f"{row['model_filename']} · {row['model_type']} · {binary_size_text(row['model_size'])} · "
        f"{row['experts']}/{row['experts_total']} experts ({row['expert_cache_mib']:.0f} MiB) · {row['policy']}, "
        f"prefetch {row['predictor']} · {_routing_text(row)}{_approx_text(row)}{row['reader']} reader · "
        f"{row['n_threads']} threads, {row['isa']} · "
        f"disk {row['disk_gb_per_s']:.2f} GB/s, {_gpu_text(row)}memory {row['memory_gb_per_s']:.1f} GB/s · "
        f"load {row['load_ms'] / 1000:.2f} s"
    )


def _routing_text(row: Row) -> str:
    return f"routing of {row['routing']} · " if row["routing"] else ""


def _behind(approx: str) -> str:
    """How exact answers are, behind another figure; nothing where they are."""
    return f"; {approx}" if approx else ""


def _approx_text(row: Row) -> str:
    return f"{row['approx']} · " if row["approx"] else ""


def _gpu_text(row: Row) -> str:
    if not _on_gpu(row):
        return ""
    limit = f"{row['vram_limit_bytes'] / 2**30:.1f} of {row['gpu_bytes'] / 2**30:.1f} GiB"
    return (
        f"{row['gpu_info']} ({limit}, driver for CUDA {row['cuda_driver']}), {row['host_experts']} experts in RAM, "
        f"link {row['link_gb_per_s']:.1f} GB/s, its "
    )


def _model_cells(row: Row) -> list[str]:
    return [
        str(row["model_type"]),
        f"{row['model_size'] / 2**30:.2f} GiB",
        f"{row['model_n_params'] / 1e9:.2f} B",
        str(row["backends"]),
        f"{row['experts']}/{row['experts_total']}",
    ]


def _cells(row: Row) -> list[str]:
    latency = row["itl_ms"]
    return [
        "cold" if row["cold"] else "warm",
        str(row["test"]),
        f"{row['avg_ts']:.2f} ± {row['stddev_ts']:.2f}",
        f"{row['ttft_ms']:.0f}",
        *(f"{latency[p]:.1f}" if p in latency else "" for p in ("p50", "p90", "p99")),
        f"{100 * row['expert_hit_rate']:.1f}%",
        str(row["late_hits"]),
        f"{row['stall_s']:.2f}",
        f"{row['bytes_per_token'] / 2**20:.2f}",
        f"{row['missed_gb_per_s' if _on_gpu(row) else 'read_gb_per_s']:.2f}",
        f"{100 * row['link_share' if _on_gpu(row) else 'disk_share']:.0f}%",
        f"{100 * row['memory_share']:.0f}%" if row["memory_share"] else "",
        f"{row['peak_rss_bytes'] / 1e9:.2f}",
    ]


def profile_text(rows: Sequence[Row]) -> str:
    """Where the milliseconds of a decode step went, for each row that knows."""
    lines = []
    for row in rows:
        parts = row.get("profile_ms") or {}
        total = sum(parts.values())
        cells = [[name, f"{ms:.3f} ms", f"{100 * ms / total:.1f}%" if total else ""] for name, ms in parts.items()]
        if cells:
            lines += [f"{'cold' if row['cold'] else 'warm'} {row['test']}: {total:.2f} ms a step", *table(cells), ""]
    return "\n".join(lines).rstrip("\n")


def _flat(row: Row) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": item for key, item in value.items()}
        else:
            flat[name] = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return flat
