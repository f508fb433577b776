"""One llama.cpp run over given token ids; prints a JSON line. Called by compare_llamacpp.py.

    pip install llama-cpp-python
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from llama_cpp import Llama


def main() -> None:
    model, work_file = sys.argv[1:3]
    work = json.loads(Path(work_file).read_text())
    llm = Llama(model, n_ctx=work["context"], n_batch=512, n_threads=work["threads"], n_threads_batch=work["threads"],
                use_mmap=True, logits_all=False, verbose=False)
    rounds = []
    for prompt, continuation in work["passages"]:
        llm.reset()
        started = time.perf_counter()
        llm.eval(prompt)
        prefill_s, token_s = time.perf_counter() - started, []
        for token in continuation:
            started = time.perf_counter()
            llm.eval([token])
            token_s.append(time.perf_counter() - started)
        rounds.append({"prefill_s": prefill_s, "token_s": token_s})
    print(json.dumps(rounds))


if __name__ == "__main__":
    main()
