"""Parameters are told one line each, several values of one name among them."""

from __future__ import annotations

import pytest

from moeinf.engine.stored.parameters import parameter_rows
from moeinf.engine.stored.preset import Preset

STOPS = ("<|a|>", "User:", "x y", 'say "no"', "zwölf\nzeilen", "</s>")


def test_each_of_several_stops_has_a_row_in_quotes() -> None:
    rows = parameter_rows({}, Preset(options=tuple(("stop", text) for text in STOPS)))
    assert [name for name, _ in rows] == ["stop"] * len(STOPS)
    assert [value for _, value in rows] == [
        '"<|a|>"',
        '"User:"',
        '"x y"',
        '"say \\"no\\""',
        '"zwölf\\nzeilen"',
        '"</s>"',
    ]


@pytest.mark.parametrize("options", [(), (("stop", "a"),), (("temperature", "0.5"), ("stop", "a"), ("stop", "b"))])
def test_what_goes_with_the_name_goes_before_what_the_checkpoint_recommends(
    options: tuple[tuple[str, str], ...],
) -> None:
    rows = parameter_rows({"temperature": 0.7, "top_k": 20}, Preset(options=options))
    own = [(name, f'"{text}"' if name == "stop" else text) for name, text in options]
    recommended = [("temperature", "0.7"), ("top_k", "20")]
    assert rows == [row for row in recommended if row[0] not in dict(options)] + own


def test_numbers_are_told_without_quotes() -> None:
    options = (("num_ctx", "2048"), ("top_p", "0.9"), ("seed", "-1"))
    assert parameter_rows({}, Preset(options=options)) == list(options)
