"""python -m tests.rehearsal FOLDER: what benchmarks/gpu.sh needs to be rehearsed.

FOLDER/bin has a python that runs programs over an emulated GPU, and stand-ins for the tools of a machine that has one;
FOLDER/configs has the configurations of the models that are measured, with small numbers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.compiling import ROOT
from tests.support.configs.deepseek_v2 import DEEPSEEK_V2
from tests.support.configs.mixtral import MIXTRAL
from tests.support.configs.qwen3_moe import QWEN3

CONFIGS = {"qwen3-30b-a3b": QWEN3, "mixtral-8x7b": MIXTRAL, "deepseek-v2-lite": DEEPSEEK_V2}
SIZES = {"hidden_size": 256, "moe_intermediate_size": 256, "intermediate_size": 256, "max_position_embeddings": 4096}
PYTHON = """#!/bin/sh
export PYTHONPATH={root} REHEARSED=1 TRITON_INTERPRET=1 OMP_NUM_THREADS=1
exec {python} -m tests.rehearsal.emulation "$@"
"""
# The options of compute-sanitizer come first, each with an =; what is run follows.
SANITIZER = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    programs = folder / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    scripts = {
        "python": PYTHON.format(root=ROOT, python=sys.executable),
        "compute-sanitizer": SANITIZER,
        "nvidia-smi": "#!/bin/sh\necho 'a card that is emulated'\n",
    }
    for name, text in scripts.items():
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)
    for name, config in CONFIGS.items():
        path = folder / "configs" / name / "config.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config | SIZES), encoding="utf-8")


main()
