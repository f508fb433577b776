"""config.json out of the metadata of a GGUF file."""

from __future__ import annotations

from typing import Any

from moeinf.gguf.header import Gguf


def config_of(gguf: Gguf) -> dict[str, Any]:
    """The config.json from which the model was converted, as far as it changes the mathematics.

    Raises UnsupportedModelError for an architecture that moeinf does not run, CheckpointError for metadata that are
    missing or damaged.
    """
    raise NotImplementedError
