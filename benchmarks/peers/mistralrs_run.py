"""Tokens a second of mistral.rs behind prompts; a JSON object a depth, as depths.cc prints. Called by depth_rows.py.

    pip install mistralrs
    python benchmarks/peers/mistralrs_run.py FILE.gguf DEPTHS STEPS [SECONDS]

The figures are mistral.rs's own. It computes the tokens before, so depths that would take more than SECONDS at the rate
of the prompt before are left out; depth 0 is a prompt of a few tokens. A prompt of 512 tokens is timed.
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
    limit_s = float(sys.argv[4]) if len(sys.argv) > 4 else 60.0
    runner = Runner(Which.GGUF(str(file.parent), file.name), prefix_cache_n=0)
    words = (Path(__file__).parents[2] / "src/moeinf/data/bench_text.txt").read_text().split()
    used = request(runner, FEW, 2, words)  # warms up
    length = request(runner, 256, 2, words).prompt_tokens / 256  # tokens a word
    rate = 0.0
    for depth in depths:
        if rate and depth / rate > limit_s:
            continue
        used = request(runner, max(FEW, round(depth / length)), steps, words)
        rate = used.avg_prompt_tok_per_sec
        print(
            json.dumps(
                {
                    "depth": depth,
                    "prompt_tokens": used.prompt_tokens,
                    "prefill_ts": round(rate, 2) if depth == 512 else 0,
                    "decode_ts": round(used.avg_compl_tok_per_sec, 2),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
