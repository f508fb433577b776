"""The tokenizer and its small configs out of the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping

from moeinf.gguf.header import Gguf


def tokenizer_files(gguf: Gguf) -> Mapping[str, bytes]:
    """tokenizer.json, tokenizer_config.json, generation_config.json and, if there is one, chat_template.jinja.

    Raises CheckpointError for a tokenizer that moeinf cannot build, naming it.
    """
    raise NotImplementedError
