"""Prints what docs/lab/benchmarks.md takes from rows of `moeinf bench -o json`: a Markdown line each, and the profile.

python benchmarks/peers/bench_rows.py RESULT.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from side_by_side import row

HEADER = (
    "model",
    "VRAM",
    "experts on the GPU",
    "request",
    "test",
    "tok/s",
    "ms a token p50 / p90 / p99",
    "hit",
    "of link",
    "of memory",
)


def main() -> None:
    rows = json.loads(Path(sys.argv[1]).read_text())
    print(row(*HEADER), "|" + "---|" * len(HEADER), sep="\n")
    for r in rows:
        limit = f"{r['vram_limit_bytes'] / 1e9:.1f} GB" if r["vram_limit_bytes"] else "-"
        print(
            row(
                r["model_filename"],
                limit,
                f"{r['experts']}/{r['experts_total']}",
                "first" if r["cold"] else "later",
                r["test"],
                f"{r['median_ts']:.2f}",
                " / ".join(str(ms) for ms in r["itl_ms"].values()) or "-",
                f"{100 * r['expert_hit_rate']:.1f} %",
                f"{100 * r['link_share']:.0f} %",
                f"{100 * r['memory_share']:.0f} %",
            )
        )
    last = rows[-1]
    facts = (
        "gpu_info",
        "cuda_driver",
        "link_gb_per_s",
        "gather_gb_per_s",
        "memory_gb_per_s",
        "disk_gb_per_s",
        "host_experts",
        "load_ms",
        "profile_ms",
    )
    print(json.dumps({name: last[name] for name in facts if name in last}))


if __name__ == "__main__":
    main()
