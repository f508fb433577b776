"""Ranks that torchrun starts with one command."""

from __future__ import annotations

import os
import subprocess
import sys

from moeinf.store.library import StoredModel
from tests.support.ranks.workers import Workers


def test_ranks_of_torchrun_answer_as_one(workers: Workers, demo: StoredModel) -> None:
    words = ["moeinf", "run", "demo", "Once upon a time", "--seed", "7", "-n", "24", "-q", "--expert-cache", "30%"]
    variables = os.environ | {"MOEINF_HOME": str(demo.path.parents[1]), "OMP_NUM_THREADS": "1"}
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "3"]
    answers = [
        subprocess.run([sys.executable, *command], env=variables, check=True, capture_output=True, text=True).stdout
        for command in (["-m", *words], [*launch, "-m", *words, "--worker-key-file", str(workers.key_file)])
    ]
    assert answers[0] == answers[1] and len(answers[0]) > 20
