"""Converts a checkpoint of your own into a stored model, verifies every byte of it, and lets it answer.

    python examples/convert.py FOLDER [--quant q4_k] [--name NAME]

FOLDER holds config.json, tokenizer.json and safetensors, as `save_pretrained` of transformers writes them. The command
line does the same: `moeinf pull FOLDER --quant q4_k --name NAME && moeinf verify NAME && moeinf run NAME`.
"""

from __future__ import annotations

import argparse
import sys

import moeinf
from moeinf.config.environment import store_home
from moeinf.config.pull_options import PullOptions
from moeinf.pull.pull import pull
from moeinf.store.verify import verify


def main() -> int:
    parser = argparse.ArgumentParser(description="Converts a checkpoint into a stored model.")
    parser.add_argument("folder")
    parser.add_argument("--quant", help="format of the weights: q8_0, q4_k, ...; default: as in the checkpoint")
    parser.add_argument("--name", help="default: the name of the folder")
    parser.add_argument("--prompt", default="Once upon a time")
    given = parser.parse_args()

    try:
        stored = pull(given.folder, PullOptions(name=given.name, quant=given.quant), home=store_home())
        faults = verify(stored)
        for fault in faults:
            print(fault, file=sys.stderr)
        if faults:
            return 1
        shape = stored.manifest.moe
        print(f"{stored.name}: {shape.num_layers} MoE layers x {shape.num_experts} experts, {stored.size_bytes} bytes")
        with moeinf.load(stored.name) as model:
            print(model.generate(given.prompt, model.params(temperature=0, num_predict=16), raw=True).text)
    except moeinf.MoeinfError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
