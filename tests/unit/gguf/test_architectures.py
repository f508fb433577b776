"""The architecture that checkpoints of a family become: what files of it are read as."""

from __future__ import annotations

import pytest

from moeinf.gguf.config import config_of
from moeinf.gguf.configs.architectures import architectures_of
from moeinf.models.family import family_of
from moeinf.models.registry import SUPPORTED
from tests.support.example_gguf import SUPPORTED as ARCHITECTURES
from tests.support.example_gguf import example
from tests.support.gguf_files import ARCHITECTURES as CONVERTED


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_files_are_of_a_family_that_becomes_them(architecture: str) -> None:
    config = config_of(example(architecture))
    assert architecture in architectures_of(family_of(config).name)


@pytest.mark.parametrize("family", sorted(CONVERTED))
def test_a_family_becomes_what_the_converter_made_of_it(family: str) -> None:
    assert CONVERTED[family] in architectures_of(family)


def test_only_architectures_that_are_read_are_named() -> None:
    assert {name for family in SUPPORTED for name in architectures_of(family)} <= set(ARCHITECTURES)
