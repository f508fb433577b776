"""github.com/ngavhane/moe-beyond: prompts of DeepSeek-V2-Lite-Chat, one CSV file each.

A row is a layer (from 1 on, as layer 0 is dense), a batch, a token and its experts, "[8, 26, 56, 57, 60, 11]"; layer by
layer, the tokens in order. Each prompt went through in one pass. Some files have the tokens' embeddings as well.
"""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from moeinf.config.user_text import decoded
from moeinf.errors import MALFORMED
from moeinf.traces.importing.request import Foreign, ForeignError, ForeignRequest

NAME: Final = "moe-beyond"
MODEL: Final = "DeepSeek-V2-Lite-Chat"
NUM_EXPERTS: Final = 64
_COLUMNS: Final = ["Layer ID", "Batch Number", "Token", "Activated Expert IDs"]


def recognises(head: str) -> bool:
    return head.startswith(",".join(_COLUMNS))


def read(files: Sequence[Path]) -> Foreign:
    """Raises ForeignError, OSError."""
    return Foreign(MODEL, NUM_EXPERTS, [request for path in files for request in _requests(path)])


def _requests(path: Path) -> Iterator[ForeignRequest]:
    """One for each batch of a file."""
    rows: dict[str, dict[int, list[list[int]]]] = defaultdict(lambda: defaultdict(list))
    with io.StringIO(decoded(path.read_bytes()), newline="") as file:
        lines = csv.reader(file)
        try:
            first = next(lines, [])
        except csv.Error:
            first = []
        if first[: len(_COLUMNS)] != _COLUMNS:
            raise ForeignError(f"{path.name} does not begin with the columns {', '.join(_COLUMNS)}")
        try:
            for row in lines:
                layer, batch, _, experts = row[: len(_COLUMNS)]
                rows[batch][int(layer)].append([int(expert) for expert in json.loads(experts)])
        except (*MALFORMED, csv.Error) as error:
            raise ForeignError(f"{path.name}, line {lines.line_num}: it is cut off, or no row of routing") from error
    for layers in rows.values():
        by_layer = [layers[layer] for layer in sorted(layers)]
        if len({len(tokens) for tokens in by_layer}) != 1:
            raise ForeignError(f"{path.name}: its layers have different numbers of tokens")
        tokens = list(zip(*by_layer, strict=True))
        yield ForeignRequest(tokens, len(tokens), [len(tokens)])
