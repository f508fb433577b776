"""One transformers process over given token ids; prints a JSON line of seconds. Called by compare_transformers.py.

    python benchmarks/peers/transformers_run.py CHECKPOINT WORK.json

The model runs in bf16 as `from_pretrained` builds it: its own default attention and experts, a growing cache, no
compilation. With weight_bytes in the work, accelerate puts that many bytes of weights on the GPU, and the rest stays in
host memory, from where its hooks copy a module's weights each time it runs.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM


def load(folder: str, device: str, weight_bytes: int | None) -> Any:
    placed: dict[str, Any] = {"device_map": {"": device}} if device != "cpu" else {}
    if weight_bytes is not None:
        placed = {"device_map": "auto", "max_memory": {torch.device(device).index: weight_bytes, "cpu": 1 << 40}}
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **placed)


@torch.inference_mode()
def replay(model: Any, device: str, prompt: list[int], continuation: list[int]) -> dict[str, Any]:
    """Seconds of the prompt, and of each token of the continuation that is fed behind it; each ends with a choice."""

    def run(tokens: list[int], cache: Any) -> tuple[float, Any]:
        started = time.perf_counter()
        ids = torch.tensor([tokens], device=device)
        done = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        int(done.logits[0, -1].argmax())  # brings a number to the host: all of the step is done
        return time.perf_counter() - started, done.past_key_values

    prefill_s, cache = run(prompt, None)
    token_s = []
    for token in continuation:
        seconds, cache = run([token], cache)
        token_s.append(seconds)
    return {"prefill_s": prefill_s, "token_s": token_s}


def main() -> None:
    folder, work_file = sys.argv[1:]
    work = json.loads(Path(work_file).read_text())
    device = work["device"]
    started = time.perf_counter()
    model = load(folder, device, work["weight_bytes"])
    load_s = time.perf_counter() - started
    rounds = [replay(model, device, *passage) for passage in work["passages"]]
    on_gpu = device.startswith("cuda")
    print(
        json.dumps(
            {
                "rounds": rounds,
                "load_s": round(load_s, 1),
                "versions": f"transformers {transformers.__version__}, torch {torch.__version__}",
                "experts": str(getattr(model.config, "_experts_implementation", "")),
                "peak_vram_bytes": torch.cuda.max_memory_allocated() if on_gpu else 0,
                "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
        )
    )


if __name__ == "__main__":
    main()
