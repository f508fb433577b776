"""One llama.cpp process over given token ids; prints a JSON line of seconds. Called by compare_llamacpp.py.

    pip install llama-cpp-python

It calls llama_decode as llama-bench does: no sampling, no copy of logits; every setting but the threads is the default.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from ctypes import c_int32
from pathlib import Path
from typing import Any

import llama_cpp


class Session:
    """A model and a context of llama.cpp; tokens go in, seconds (or logits) come out."""

    def __init__(self, path: str, context: int, threads: int, *, repack: bool = True, mmap: bool = True) -> None:
        """repack False is llama.cpp's --no-repack: quantised weights stay in the mapped file."""
        llama_cpp.llama_log_set(_LOG, None)
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.load_mode = llama_cpp.LLAMA_LOAD_MODE_MMAP if mmap else llama_cpp.LLAMA_LOAD_MODE_NONE
        params.use_extra_bufts = repack
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = context
        settings.n_threads = settings.n_threads_batch = threads
        self._context: Any = llama_cpp.llama_init_from_model(self._model, settings)
        if not self._context:
            raise RuntimeError(f"llama.cpp cannot make a context of {context} tokens")
        self.num_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))

    def forget(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def decode(self, tokens: list[int]) -> None:
        """Runs tokens behind what the context holds, and makes the logits of the last; waits until they are there."""
        ids = (llama_cpp.llama_token * len(tokens))(*tokens)
        self._run(llama_cpp.llama_batch_get_one(ids, len(tokens)))

    def decode_all(self, tokens: list[int], first: int) -> Any:
        """Logits of every token as a float pointer, valid until the next call; `first` is the place of tokens[0]."""
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        try:
            batch.n_tokens = len(tokens)
            for i, token in enumerate(tokens):
                batch.token[i], batch.pos[i], batch.logits[i] = token, first + i, 1
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            self._run(batch)
        finally:
            llama_cpp.llama_batch_free(batch)
        return llama_cpp.llama_get_logits(self._context)

    def close(self) -> None:
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def _run(self, batch: Any) -> None:
        status: c_int32 | int = llama_cpp.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode failed with status {status}")
        llama_cpp.llama_synchronize(self._context)


def _errors_only(level: int, text: bytes, data: Any) -> None:
    if level == 4:  # GGML_LOG_LEVEL_ERROR
        sys.stderr.write(text.decode(errors="replace"))


_LOG: Any = llama_cpp.llama_log_callback(_errors_only)  # llama.cpp keeps the pointer: it must outlive every session


def main() -> None:
    model, work_file = sys.argv[1:3]
    work = json.loads(Path(work_file).read_text())
    started = time.perf_counter()
    session = Session(model, work["context"], work["threads"], repack=work["repack"], mmap=work["mmap"])
    load_s = time.perf_counter() - started
    rounds = []
    for prompt, continuation in work["passages"]:
        session.forget()
        started = time.perf_counter()
        session.decode(prompt)
        prefill_s, token_s = time.perf_counter() - started, []
        for token in continuation:
            started = time.perf_counter()
            session.decode([token])
            token_s.append(time.perf_counter() - started)
        rounds.append({"prefill_s": prefill_s, "token_s": token_s})
    peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"load_s": load_s, "peak_rss_bytes": peak_rss, "rounds": rounds}))


if __name__ == "__main__":
    main()
