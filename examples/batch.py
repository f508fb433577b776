"""Answers many prompts: one a line on standard input, one JSON object a line on standard output.

    python examples/batch.py [MODEL] < prompts.txt > answers.jsonl

The model stays open, so that the experts which one prompt has brought into memory are there for the next.
"""

from __future__ import annotations

import json
import sys

import moeinf


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "demo"
    with moeinf.load(name) as model:
        params = model.params(temperature=0, num_predict=64)
        for line in sys.stdin:
            if not line.strip():
                continue
            completion = model.generate(line.strip(), params)
            answer = {
                "prompt": line.strip(),
                "response": completion.text,
                "finish_reason": completion.finish_reason,
                "tokens_per_s": round(len(completion.token_ids) / completion.stats.total_s, 1),
                "hit_rate": round(completion.stats.decode_cache.hit_rate, 3),
            }
            print(json.dumps(answer, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
