"""Every model type of transformers that has experts is run, or is refused with what it would need."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from moeinf.errors import UnsupportedModelError
from moeinf.models.family import counts_experts, family_of
from moeinf.models.refused import REFUSED
from moeinf.models.registry import MODULES


def names_in(value: Any) -> set[str]:
    """The names of all fields, at any depth."""
    if isinstance(value, dict):
        return {str(name) for name in value}.union(*map(names_in, value.values()))
    return set().union(*map(names_in, value)) if isinstance(value, list) else set()


def fields_of(kind: Any) -> set[str]:
    """Of a configuration class: what one saves that is made without arguments, or where that fails what it declares."""
    try:
        found = names_in(json.loads(json.dumps(kind().to_dict(), default=str)))
    except Exception:  # whatever a class that cannot be made so says
        found = {name for base in kind.__mro__ for name in getattr(base, "__annotations__", {})}
    return found | set(kind.attribute_map)


@pytest.fixture(scope="module")
def with_experts() -> set[str]:
    return {name for name, kind in CONFIG_MAPPING.items() if any(map(counts_experts, fields_of(kind)))}


def test_every_type_with_experts_is_run_or_refused_by_name(with_experts: set[str]) -> None:
    assert len(with_experts) > 90
    assert with_experts - MODULES.keys() == REFUSED.keys()


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_what_the_family_would_need(name: str) -> None:
    with pytest.raises(UnsupportedModelError) as refused:
        family_of({"model_type": name, "num_experts": 8})
    line = str(refused.value)
    assert line.startswith(
        f"{name!r} is a Mixture-of-Experts family that this version does not run: it needs {REFUSED[name]};"
    )
    assert line.endswith("docs/models.md") and len(line) < 400 and "\n" not in line
