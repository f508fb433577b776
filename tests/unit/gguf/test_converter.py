"""Our writer of GGUF files makes what llama.cpp's converter made; so what is tested with it holds for real files."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeinf.gguf.header import read_gguf
from tests.support.converter.record import NAMES, checkpoint, summary
from tests.support.converter.recorded import recorded
from tests.support.gguf_files import write_gguf


@pytest.mark.parametrize("name", NAMES)
def test_the_writer_of_the_tests_does_what_the_converter_does(name: str, tmp_path: Path) -> None:
    config, tensors = checkpoint(name)
    experts = "MXFP4" if name == "deepseek_v4" else "BF16"
    [path] = write_gguf(
        tmp_path / "model.gguf", config, tensors, kinds=lambda each: experts if "_exps." in each else "BF16"
    )
    ours, theirs = summary(read_gguf(path)), recorded()[name]
    for what in ("architecture", "metadata", "tensors"):
        assert ours[what] == theirs[what]
