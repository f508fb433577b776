"""Tokens a second of mistral.rs behind prompts; a JSON object a depth, as depths.cc prints. Called by depth_rows.py.

    pip install mistralrs
    python benchmarks/peers/mistralrs_run.py FILE.gguf DEPTHS STEPS [SECONDS]

The figures are mistral.rs's own. It computes the tokens before, so depths that would take more than SECONDS at the rate
of the prompt before are left out, and no more steps are taken than that time allows; depth 0 is a prompt of a few
tokens. The prompt of 512 tokens is timed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mistralrs import CompletionRequest, Runner, Which  # type: ignore[import-not-found]

FEW = 8


def request(runner: Any, tokens: int, steps: int, words: list[str]) -> Any:
    """Usage of a prompt of about that many tokens and `steps` behind it."""
    text = " ".join(words[at % len(words)] for at in range(tokens))
    asked = CompletionRequest(text, "default", max_tokens=steps, temperature=0.0, ignore_eos=True)
    return runner.send_completion_request(asked).usage


def main() -> None:
    file, depths, steps = Path(sys.argv[1]), [int(each) for each in sys.argv[2].split(",")], int(sys.argv[3])
    limit_s = float(sys.argv[4]) if len(sys.argv) > 4 else 20.0
    runner = Runner(Which.GGUF(str(file.parent), file.name), prefix_cache_n=0)
    words = (Path(__file__).parents[2] / "src/moeinf/data/bench_text.txt").read_text().split()
    used = request(runner, FEW, 2, words)  # warms up
    length, rate = used.prompt_tokens / FEW, 0.0  # tokens a word, tokens a second
    for depth in depths:
        if rate and depth / rate > limit_s:
            continue
        affordable = max(2, min(steps, round(limit_s * used.avg_compl_tok_per_sec)))
        used = request(runner, max(FEW, round(depth / length)), affordable, words)
        rate = used.avg_prompt_tok_per_sec
        prefill, decode = (round(rate, 2) if depth == 512 else 0), round(used.avg_compl_tok_per_sec, 3)
        print(json.dumps({"depth": depth, "prefill_ts": prefill, "decode_ts": decode}), flush=True)


if __name__ == "__main__":
    main()
