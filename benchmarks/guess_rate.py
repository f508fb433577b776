"""What guessed tokens are worth: tokens a second with and without them.

    .venv/bin/python benchmarks/guess_rate.py coder:q8_0 --cache 33% --rounds 5

Tasks: `repeat` asks for a file again with one name changed, `program` for a program, `prose` for a story. Answers with
and without guesses are made by turns by one open model, each from an empty KV cache and with nothing measured before,
so that both see the same machine and the same experts in memory. Prints a line for each answer, and a table at the
end: medians, the median of the ratios of neighbours with its quartiles, and how many guesses were right.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from moeinf.config import RuntimeConfig
from moeinf.config.environment import store_home
from moeinf.config.run_options import SpeculationOptions
from moeinf.engine.answers.drafting import Drafting
from moeinf.engine.model import Model
from moeinf.store.library import Library

FILE = (Path(__file__).parents[1] / "src" / "moeinf" / "sampling" / "ranking.py").read_text(encoding="utf-8")
TASKS = {
    "repeat": "Write this file again with the function `largest` called `biggest`. Answer with the whole file alone.\n"
    f"```python\n{FILE}```",
    "program": "Write a Python class for a bank account with deposits, withdrawals, interest and a history, and tests.",
    "prose": "Tell a long story about a fisherman who finds an old map in a bottle.",
}


class Row(NamedTuple):
    rate: float  # tokens a second, behind the first
    cpu_s: float  # of all threads, the prompt's too
    megabytes: float  # read, a token
    drafted: int
    accepted: int
    ids: tuple[int, ...]


def answer(model: Model, task: str, mode: str, tokens: int, draft_max: int) -> Row:
    options = SpeculationOptions(mode, draft_max)
    model.generator.drafting = None if mode == "off" else Drafting(options)
    model.generator.sequences.last.clear()
    began = time.process_time()
    made = model.generate(TASKS[task], model.params(temperature=0.0, num_predict=tokens))
    stats, read, count = made.stats, made.stats.decode_cache, len(made.stats.token_s)
    return Row(
        count / stats.decode_s,
        time.process_time() - began,
        (read.demand_bytes + read.prefetch_bytes) / 1e6 / count,
        stats.drafts.drafted,
        stats.drafts.accepted,
        tuple(made.token_ids),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--cache", default="100%", help="memory for experts, such as 33%%")
    parser.add_argument("--task", action="append", choices=list(TASKS))
    parser.add_argument("--mode", action="append", choices=("auto", "always"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--draft-max", type=int, default=7)
    given = parser.parse_args()
    config = RuntimeConfig.of(device="cpu", context=4096, expert_cache=given.cache, speculate="off")
    found: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    modes = ["off", *(given.mode or ["auto"])]
    with Model(Library(store_home()).find(given.model), config) as model:
        model.generate(TASKS["prose"], model.params(temperature=0.0, num_predict=20))
        for number in range(given.rounds):
            for task in given.task or TASKS:
                for mode in modes if number % 2 else modes[::-1]:
                    row = answer(model, task, mode, given.tokens, given.draft_max)
                    found[task, mode].append(row)
                    print(
                        task,
                        mode,
                        f"{row.rate:.1f} tokens/s, {row.cpu_s:.2f} s, {row.accepted} of {row.drafted}",
                        flush=True,
                    )
                    assert row.ids == found[task, modes[0]][0].ids if found[task, modes[0]] else True, "tokens differ"
    print("| task | guesses | tokens/s | of off (quartiles) | CPU time of off | right | MB a token |")
    print("|---|---|---|---|---|---|---|")
    for (task, mode), rows in sorted(found.items(), key=lambda each: (list(TASKS).index(each[0][0]), each[0][1])):
        off = found[task, "off"]
        ratios = [one.rate / two.rate for one, two in zip(rows, off, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        whole = statistics.median(one.cpu_s / two.cpu_s for one, two in zip(rows, off, strict=True))
        right = f"{rows[0].accepted} of {rows[0].drafted}" if rows[0].drafted else ""
        rate, read = statistics.median(row.rate for row in rows), statistics.median(row.megabytes for row in rows)
        spread = f"{middle:.2f} ({low:.2f} to {high:.2f})" if mode != "off" else "1"
        print(f"| {task} | {mode} | {rate:.1f} | {spread} | {whole:.2f} | {right} | {read:.1f} |")


if __name__ == "__main__":
    main()
