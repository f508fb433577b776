"""Which tests `make test` runs."""

from __future__ import annotations

from tests.support.sample import sample


def test_of_many_cases_some_run_and_at_least_one() -> None:
    cases = [f"tests/parity/test_a.py::test_b[{number}]" for number in range(400)]
    assert 25 <= len(sample(cases)) <= 80
    assert all(len(sample(cases[at : at + 4])) >= 1 for at in range(0, 400, 4))


def test_each_run_has_the_same() -> None:
    ids = [f"tests/e2e/cli/test_a.py::test_{number}" for number in range(300)]
    assert sample(ids) == sample(reversed(ids)) and 20 <= len(sample(ids)) <= 80


def test_elsewhere_all_run() -> None:
    ids = [f"tests/unit/server/test_a.py::test_b[{number}]" for number in range(50)] + [
        "tests/parity/test_a.py::test_c"
    ]
    assert sample(ids) == set(ids)


def test_kernels_are_compiled_elsewhere() -> None:
    assert not sample(["tests/unit/gpu/test_matrix_compile.py::test_a[sm_80]"])
