"""github.com/AmanPriyanshu/GPT-OSS-MoE-ExpertFingerprinting: greedy answers of gpt-oss-20b, one JSON file each.

`router_data` is a list of {"token_191": {"layer_0": {"selected_experts": [..], "selected_probs": [..]}, ..}}, in the
order of the tokens. Their numbers count from the start of the prompt, whose length is `input_tokens`, or what
`full_text` has beyond `generated_only`; the published files leave the prompt out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from moeinf.config.user_text import decoded
from moeinf.errors import MALFORMED
from moeinf.traces.importing.request import Foreign, ForeignError, ForeignRequest
from moeinf.types import Json, JsonMapping

NAME: Final = "fingerprinting"
MODEL: Final = "gpt-oss-20b"
NUM_EXPERTS: Final = 32


def recognises(text: str) -> bool:
    """text: of a whole file. Other recorders write JSON, too, and more than one object into a file."""
    return text.lstrip().startswith("{") and bool(re.search(r'"router_data"\s*:', text))


def read(files: Sequence[Path]) -> Foreign:
    """Raises ForeignError, OSError."""
    return Foreign(MODEL, NUM_EXPERTS, [_request(path) for path in files])


def _request(path: Path) -> ForeignRequest:
    try:
        answer = json.loads(decoded(path.read_bytes()))
        tokens = [next(iter(entry.items())) for entry in answer["router_data"]]
        length = answer.get("input_tokens")
        if length is None:
            length = len(answer["full_text"]) - len(answer["generated_only"])
        num_prompt = sum(int(name.removeprefix("token_")) < int(length) for name, _ in tokens)
        layers = [[layer[f"layer_{number}"] for number in range(len(layer))] for _, layer in tokens]
        experts, weights = (_of_all(layers, name) for name in ("selected_experts", "selected_probs"))
    except (*MALFORMED, StopIteration) as error:
        raise ForeignError(f"{path.name} is cut off, or has no router_data as it should be") from error
    single = [1] * (len(tokens) - num_prompt)
    return ForeignRequest(experts, num_prompt, [num_prompt, *single] if num_prompt else single, weights)


def _of_all(layers: Sequence[Sequence[JsonMapping]], name: str) -> list[list[Json]]:
    return [[layer[name] for layer in token] for token in layers]
