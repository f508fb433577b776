"""moeinf beside transformers on one GPU: same weights in bf16, same token ids, alternating.

    python benchmarks/peers/compare_transformers.py MODEL=CHECKPOINT --cache 100% --cache 50% --rounds 2 --passages 3

MODEL is a stored model made from CHECKPOINT, both in bf16. At --cache 100% everything is on the GPU on both sides; at
less, moeinf has slots for that share of the experts and host memory behind it, and transformers runs with accelerate's
offloading, which gets as many bytes of the GPU for weights, and one layer's more, as it keeps that free to copy into. A
round runs every setting once, both sides one after the other, each in a process that serves `--passages` requests, of
which the first is reported apart. Prints Markdown: medians (smallest-largest, n), ratios, and what moeinf says of its
last decode: shares of the GPU's memory and of the link to it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import Failed, output_of, passages
from side_by_side import PROFILE, Request, Side, median, ratio, row, spread

from moeinf.config.environment import store_home
from moeinf.config.size import parse_size
from moeinf.store.library import Library, StoredModel

HERE = Path(__file__).parent
OURS, PEER = "moeinf", "transformers"
GPU_PROFILE = (
    *PROFILE,
    "gpu_info",
    "cuda_driver",
    "link_gb_per_s",
    "gather_gb_per_s",
    "link_share",
    "weights_gb_per_s",
    "memory_share",
    "host_experts",
    "itl_ms",
)


@dataclass(frozen=True)
class Setting:
    """A model, and the share of its experts that the GPU holds."""

    stored: StoredModel
    checkpoint: Path
    cache: str

    @property
    def weight_bytes(self) -> int | None:
        """Of the GPU, for transformers with accelerate; None: all."""
        experts = self.stored.manifest.moe.total_experts * self.stored.manifest.layout.stride_bytes
        size = parse_size("--cache", self.cache)
        resident = size.of(experts) if size else experts
        if resident >= experts:
            return None
        return self.stored.size_bytes - experts + resident + experts // self.stored.manifest.moe.num_layers


class Comparison:
    """Runs processes of both sides by turns and collects what they say."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self.sides: dict[tuple[str, str, str], Side] = defaultdict(Side)  # (model, cache, engine)

    def round(self, setting: Setting) -> None:
        for engine, runner in ((OURS, self._moeinf), (PEER, self._transformers)):
            side = self.sides[setting.stored.name, setting.cache, engine]
            try:
                runner(side, setting)
            except Failed as failure:
                side.failures.append(str(failure))

    def _moeinf(self, side: Side, setting: Setting) -> None:
        given = self._given
        rows = json.loads(
            output_of(
                [
                    sys.executable,
                    "-m",
                    "moeinf",
                    "bench",
                    setting.stored.name,
                    "-q",
                    "-o",
                    "json",
                    "--device",
                    given.device,
                    "-p",
                    str(given.prompt),
                    "-n",
                    str(given.decode),
                    "-r",
                    str(given.passages - 1),
                    "--expert-cache",
                    setting.cache,
                    "-c",
                    str(given.prompt + given.decode + 64),
                    *given.bench_option,
                ]
            )
        )
        for cold in (True, False):
            group = [row["samples_ts"] for row in rows if row["cold"] is cold]  # prefill, decode
            side.requests += [Request(cold, prefill, decode) for prefill, decode in zip(*group, strict=True)]
        side.row = next((row for row in reversed(rows) if row["test"].startswith("tg")), {})

    def _transformers(self, side: Side, setting: Setting) -> None:
        given = self._given
        work = {
            "device": given.device,
            "weight_bytes": setting.weight_bytes,
            "passages": passages(setting.stored.path, given.prompt, given.decode, given.passages),
        }
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(work, file)
            file.flush()
            said = output_of([sys.executable, str(HERE / "transformers_run.py"), str(setting.checkpoint), file.name])
        side.row = json.loads(said.splitlines()[-1])
        for number, request in enumerate(side.row.pop("rounds")):
            side.requests.append(
                Request(
                    number == 0, given.prompt / request["prefill_s"], len(request["token_s"]) / sum(request["token_s"])
                )
            )

    def markdown(self) -> str:
        """A line for each setting and test; below, failures, and what both say of their last process."""
        lines = [
            row("model", "experts on the GPU", "test", "request", "moeinf tok/s", "transformers tok/s", "ratio"),
            "|---|---|---|---|---|---|---|",
        ]
        for model, cache in dict.fromkeys((model, cache) for model, cache, _ in self.sides):
            ours, peer = self.sides[model, cache, OURS], self.sides[model, cache, PEER]
            for test, tokens in (("prefill", self._given.prompt), ("decode", self._given.decode)):
                for cold in (True, False):
                    rates = ours.rates(test, cold), peer.rates(test, cold)
                    if any(rates):
                        lines.append(
                            row(
                                model,
                                cache,
                                f"{test} {tokens}",
                                "first" if cold else "later",
                                *map(spread, rates),
                                ratio(*rates),
                            )
                        )
        lines.append("")
        for (model, cache, engine), side in self.sides.items():
            if side.failures:
                lines.append(
                    f"{engine} on {model} at {cache}: {len(side.failures)} of its processes failed: {side.failures[-1]}"
                )
            said = {name: side.row[name] for name in GPU_PROFILE if name in side.row} if engine == OURS else side.row
            rate = median(side.rates("decode", False))
            token_ms = f"{1e3 / rate:.2f} ms a token; " if rate else ""
            lines.append(f"{engine} on {model} at {cache}: {token_ms}{json.dumps(said)}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {"/".join(key): side.to_json() for key, side in self.sides.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="+", metavar="MODEL=CHECKPOINT")
    parser.add_argument("--cache", action="append", help="of the experts, repeatable; 100%% if not given")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--passages", type=int, default=3, help="requests a process; the first is reported apart")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--device", default="cuda:0", help="cpu only rehearses")
    parser.add_argument("--bench-option", action="append", default=[], help="passed on to moeinf bench")
    parser.add_argument("--json", type=Path, help="where to write every figure, after each round")
    given = parser.parse_args()
    settings = []
    for name, _, folder in (text.partition("=") for text in given.pairs):
        stored = Library(store_home()).find(name)
        settings += [Setting(stored, Path(folder), cache) for cache in given.cache or ["100%"]]
    comparison = Comparison(given)
    for number in range(given.rounds):
        for setting in settings:
            comparison.round(setting)
            if given.json:
                given.json.write_text(json.dumps(comparison.to_json()))
        print(f"round {number + 1} of {given.rounds} done", file=sys.stderr, flush=True)
    print(comparison.markdown())


if __name__ == "__main__":
    main()
