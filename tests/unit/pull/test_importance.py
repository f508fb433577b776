"""The names by which sums of each family's matrices are kept, which are those of GGUF files."""

from __future__ import annotations

import re

import pytest

from moeinf.models.family import family_of
from moeinf.pull.importance import DENSE, matrix_names
from tests.support.tiny_models import all_configs

CONFIGS = all_configs() | all_configs("SEQ2SEQ_CONFIGS")


@pytest.mark.parametrize("name", CONFIGS)
def test_no_two_matrices_of_a_model_have_one_name(name: str) -> None:
    plan = family_of(CONFIGS[name]).tensors
    names = matrix_names(plan)
    assert len(set(names.values())) == len(names)
    experts = {place: each for place, each in names.items() if place[0] != DENSE}
    assert len(experts) == plan.moe.num_layers * sum(len(shape) > 1 for shape in plan.parts.values())
    assert all(re.fullmatch(r"blk\.\d+\.ffn_(gate|up|down)(_exps)?\.weight", each) for each in experts.values())
