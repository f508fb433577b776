"""Compares what `moeinf fit` says with what `moeinf bench` then measures, for stored models and limits of memory.

    moeinf doctor --again
    python benchmarks/forecast_against_fact.py qwen4 mix4 --ram 1GiB --ram 2GiB

Prints a row of a Markdown table for each. The forecast comes before the run, so that the first limit of a model is
forecast without its history, unless it ran before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

PROMPT_TOKENS = 512
HEAD = (
    "| model | --ram | resident | hit rate | decode, tokens/s | off by | prefill, tokens/s | off by |\n"
    "|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--ram", action="append", required=True)
    parser.add_argument("--decode", default="64")
    parser.add_argument("--repeats", default="3")
    parser.add_argument("--no-head", action="store_true")
    given = parser.parse_args()
    if not given.no_head:
        print(HEAD)
    for model in given.models:
        for ram in given.ram:
            forecast = moeinf("fit", model, "--ram", ram, "--json")
            size = ["-p", str(PROMPT_TOKENS), "-n", given.decode, "-r", given.repeats]
            rows = moeinf("bench", model, *size, "--ram", ram, "--device", "cpu", "-o", "json", "-q")
            print(line(model, ram, forecast, {row["test"][:2]: row for row in rows if not row["cold"]}), flush=True)


def moeinf(*words: str) -> Any:
    done = subprocess.run([sys.executable, "-m", "moeinf", *words], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def line(model: str, ram: str, forecast: dict[str, Any], rows: dict[str, Any]) -> str:
    """Forecast and fact of each column, and by how much the first is off."""
    cells = [model, ram, f"{forecast['experts'] / forecast['experts_total']:.0%}"]
    cells.append(f"{forecast['expert_hit_rate']:.2f} / {rows['tg']['expert_hit_rate']:.2f}")
    for test, name in (("tg", "decode"), ("pp", "prefill")):
        said, fact = forecast[f"{name}_tokens_per_s"], rows[test]["median_ts"]
        cells += [f"{said:.3g} / {fact:.3g}", f"{said / fact - 1:+.0%}"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
