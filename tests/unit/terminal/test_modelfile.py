"""Modelfiles: what is understood, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from moeinf.config import RuntimeConfig
from moeinf.engine.stored.modelfile import commands, own_modelfile, quoted
from moeinf.engine.stored.preset import NO_PRESET, Preset, preset_of
from moeinf.errors import StoreError, UsageError
from moeinf.store.library import StoredModel
from moeinf.terminal.arguments.modelfile_options import parse_modelfile, read_modelfile

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
    assert found.preset.configured(RuntimeConfig.of(context=64)).memory.context == 64  # what the user says counts more


def test_a_model_without_settings_is_made_of_itself() -> None:
    assert own_modelfile(named(NO_PRESET)) == "FROM terse:latest"


TEXTS = st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"]), min_size=1)
WRITTEN = st.sampled_from(
    ["FROM a\nPARAMETER stop {}", 'FROM a\nPARAMETER stop "{}"', 'FROM a\nPARAMETER stop """{}"""']
)


@given(WRITTEN, TEXTS | st.text("\" \n#'a\\\u2028\x85", min_size=1))
@example('FROM a\nPARAMETER stop """{}"""', "two\nlines")
@example('FROM a\nPARAMETER stop """{}"""', "\n \n0")
@example('FROM a\nPARAMETER stop """{}"""', "0\n \n")
def test_a_value_that_was_read_is_written_so_that_it_is_read_again(form: str, text: str) -> None:
    try:
        [stop] = parse_modelfile(form.format(text), "Modelfile").preset.params["stop"]
    except (UsageError, ValueError):
        return
    for again in (f"FROM a\nPARAMETER stop {quoted(stop)}\nPARAMETER top_k 1", f"FROM a\nSYSTEM {quoted(stop)}\n# end"):
        preset = parse_modelfile(again, "Modelfile").preset
        assert preset.system == stop or preset.params == {"stop": (stop,), "top_k": 1}


ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32")


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"], ids=["Unix", "Windows", "old Mac"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_file_of_any_system_says_the_same(encoding: str, ends: str, tmp_path: Path) -> None:
    path = tmp_path / "Modelfile"
    path.write_bytes((TEXT + "PARAMETER seed 7").replace("\n", ends).encode(encoding))
    assert read_modelfile(path) == parse_modelfile(TEXT + "PARAMETER seed 7", "Modelfile")


@pytest.mark.parametrize(
    "line",
    ['FROM "./my model"', "FROM './my model'", "from\t./my model", 'FROM """./my model"""', '  FROM   "./my model"  '],
)
def test_from_may_stand_in_quotes(line: str) -> None:
    assert parse_modelfile(line, "Modelfile").source == "./my model"


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ('PARAMETER stop """two\nlines"""', ("two\nlines",)),
        ('PARAMETER stop """one"""\nPARAMETER stop "two"', ("one", "two")),
        ('PARAMETER\tstop\t"""a\n# no comment\nSYSTEM b"""', ("a\n# no comment\nSYSTEM b",)),
        ('parameter stop say "x" twice', ('say "x" twice',)),
        ("PARAMETER stop a\u2028b", ("a\u2028b",)),
    ],
)
def test_three_quotes_hold_the_lines_of_any_value(text: str, stops: tuple[str, ...]) -> None:
    assert parse_modelfile(f"FROM a\n{text}", "Modelfile").preset.params == {"stop": stops}


@pytest.mark.parametrize(
    ("text", "system", "stops"),
    [
        ('SYSTEM "two\nlines"', "two\nlines", ()),
        ('SYSTEM "two\n\n# lines\nFROM b"  \nPARAMETER stop "x"', "two\n\n# lines\nFROM b", ("x",)),
        ('SYSTEM "\ntwo\n"\nPARAMETER stop x', "\ntwo\n", ("x",)),
        ('PARAMETER stop "\n"\nPARAMETER stop "a\nb"', "", ("\n", "a\nb")),
        ('LICENSE "MIT\nof somebody"\nSYSTEM a', "a", ()),
        ('SYSTEM "Hello" she said\nPARAMETER stop "x"', '"Hello" she said', ("x",)),  # no text of many lines
        ('SYSTEM "Hello\nPARAMETER stop "x"', '"Hello', ("x",)),
        ('PARAMETER stop "', "", ('"',)),
    ],
)
def test_one_quote_holds_lines_that_have_none_as_ollama_writes_them(
    text: str, system: str, stops: tuple[str, ...]
) -> None:
    preset = parse_modelfile(f"FROM a\n{text}", "Modelfile").preset
    assert (preset.system, preset.params.get("stop", ())) == (system, stops)


@given(st.lists(st.text("\"'\n #a", min_size=1), min_size=1, max_size=4))
def test_values_that_are_read_alone_are_read_behind_each_other(stops: list[str]) -> None:
    written = [f"PARAMETER stop {quoted(stop)}" for stop in stops]
    try:
        alone = [each.value for line in written for each in commands(line, "")]
    except UsageError:
        return
    assume(alone == stops)
    assert [each.value for each in commands("\n".join(written), "")] == stops


def test_what_ollama_has_and_means_nothing_here_is_passed_over_with_a_note() -> None:
    text = 'FROM a\nLICENSE """\nMIT\n"""\nREQUIRES 0.14.0\nrequires 0.15\nRENDERER b\nPARSER b\nSYSTEM s'
    found = parse_modelfile(text, "Modelfile")
    assert found.preset == Preset("s")
    said = [(2, "LICENSE"), (5, "REQUIRES"), (6, "REQUIRES"), (7, "RENDERER"), (8, "PARSER")]
    assert [note.split(" ")[:4] for note in found.notes] == [
        ["Modelfile,", "line", f"{line}:", word] for line, word in said
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Modelfile has no FROM line"),
        ("FROM", "line 1: FROM is followed by nothing"),
        ("FROM a\nFROM b", "line 2: there is a second FROM; a model is made of one: of a split name one part"),
        ("FROM a\n\nTEMPLATE {{ .Prompt }}", "line 3: each checkpoint brings its own chat template"),
        ('FROM a\nTEMPLATE """{{ .System }}\n{{ .Prompt }}"""', "line 2: each checkpoint"),
        ("FROM a\nADAPTER b\nADAPTER c", "line 3: there is a second ADAPTER"),
        ("FROM a\nMESSAGE user hi", "line 2: a Modelfile has no messages here"),
        ("FROM a\nPARAMETER stop", "line 2: PARAMETER stop is followed by nothing"),
        ("FROM a\nPARAMETER nothing 1", "line 2: unknown option 'nothing'"),
        ("FROM a\nPARAMETER temperature hot", "line 2: temperature must be a number"),
        ("FROM a\nPARAMETER top_p 7", "line 2: top_p must be between 0 and 1"),
        ("FROM a\nPARAMETER json_calls maybe", "line 2: json_calls must be on or off"),
        ("FROM a\nPARAMETER expert_cache much", "line 2: "),
        ('FROM a\nSYSTEM """never closed', "line 2: the three quotes are not closed"),
        ("FROM a\nFORM b", "line 2: 'FORM' is no command; known: FROM, ADAPTER, PARAMETER, SYSTEM"),
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
    (tmp_path / "latin").write_bytes("FROM demo\nSYSTEM caf\u00e9".encode("latin-1"))
    with pytest.raises(UsageError, match="is no UTF-8 text"):
        read_modelfile(tmp_path / "latin")


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
