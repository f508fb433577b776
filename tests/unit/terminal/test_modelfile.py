"""Modelfiles: what is understood, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.stored.preset import NO_PRESET, Preset, preset_of
from moeinf.errors import StoreError, UsageError
from moeinf.store.library import StoredModel
from moeinf.terminal.arguments.modelfile import own_modelfile, parse_modelfile, read_modelfile

TEXT = '''
# A model that is terse.
from ./mixtral
PARAMETER temperature 0.2
parameter stop "<|im end|>"
PARAMETER stop END
Parameter num_ctx 512
PARAMETER expert_cache 40%
SYSTEM """
You are terse.
# This is no comment.
"""
'''


def named(preset: Preset) -> StoredModel:
    return StoredModel("terse:latest", "0" * 12, Path("nowhere"), preset.dumps())


def test_commands_parameters_and_blocks() -> None:
    found = parse_modelfile(TEXT, "Modelfile")
    assert found.source == "./mixtral"
    assert found.preset.system == "You are terse.\n# This is no comment."
    assert found.preset.params == {"temperature": 0.2, "stop": ("<|im end|>", "END")}
    config = found.preset.configured(RuntimeConfig())
    assert config == RuntimeConfig.of(context=512, expert_cache="40%")
    assert found.preset.configured(RuntimeConfig(context=64)).context == 64  # what the user says counts more


def test_what_is_shown_makes_the_same_model() -> None:
    stored = named(parse_modelfile(TEXT, "Modelfile").preset)
    again = parse_modelfile(own_modelfile(stored), "again")
    assert again.source == stored.name and again.preset == preset_of(stored)
    assert own_modelfile(named(NO_PRESET)) == "FROM terse:latest"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Modelfile has no FROM line"),
        ("FROM", "line 1: FROM is followed by nothing"),
        ("FROM a\nFROM b", "line 2: there is a second FROM"),
        ("FROM a\n\nTEMPLATE {{ .Prompt }}", "line 3: each checkpoint brings its own chat template"),
        ('FROM a\nTEMPLATE """{{ .System }}\n{{ .Prompt }}"""', "line 2: each checkpoint"),
        ("FROM a\nADAPTER ./lora", "line 2: adapters are not supported"),
        ("FROM a\nMESSAGE user hi", "line 2: messages are not kept"),
        ("FROM a\nLICENSE MIT", "line 2: the licence is that of the checkpoint"),
        ("FROM a\nPARAMETER nothing 1", "line 2: unknown option 'nothing'"),
        ("FROM a\nPARAMETER temperature hot", "line 2: temperature must be a number"),
        ("FROM a\nPARAMETER top_p 7", "line 2: top_p must be between 0 and 1"),
        ("FROM a\nPARAMETER expert_cache much", "line 2: "),
        ('FROM a\nSYSTEM """never closed', "line 2: the three quotes are not closed"),
        ("FROM a\nFORM b", "line 2: 'FORM' is no command; known: FROM, PARAMETER, SYSTEM"),
    ],
)
def test_what_would_be_ignored_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_modelfile(text, "Modelfile")
    assert said in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="specified Modelfile wasn't found"):
        read_modelfile(tmp_path / "Modelfile")
    with pytest.raises(UsageError, match="cannot be read"):
        read_modelfile(tmp_path)
    (tmp_path / "long").write_bytes(b"#" * (1 << 17))
    with pytest.raises(UsageError, match="longer than 64 KiB"):
        read_modelfile(tmp_path / "long")


def test_a_preset_over_another_keeps_what_only_the_other_says() -> None:
    below = Preset("below", (("temperature", "1"), ("stop", "A")))
    above = Preset("", (("stop", "B"),))
    assert above.over(below) == Preset("below", (("temperature", "1"), ("stop", "B")))


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"system": 1, "options": []}', '{"system": "", "options": [["x", "1"]]}']
)
def test_a_damaged_preset_is_named_with_the_remedy(text: str) -> None:
    with pytest.raises(StoreError, match="terse:latest"):
        preset_of(StoredModel("terse:latest", "0" * 12, Path("nowhere"), text))
