"""Where pictures lie in a sequence: their rows, their positions, and what their tokens see."""

from __future__ import annotations

import numpy as np

from moeinf.models.layers.rope import Rope
from moeinf.models.layers.soft_tokens import SoftTokens, ends_seen, positions_3d, put_rows
from moeinf.types import Float32Array


def picture(start: int, rows: int, cols: int) -> SoftTokens:
    numbers: Float32Array = np.arange(rows * cols, dtype=np.float32)[:, None] + 100 * start
    return SoftTokens(start, (rows, cols), lambda: numbers)


PICTURES = (picture(2, 2, 3), picture(9, 1, 2))


def test_text_has_one_position_and_pictures_have_rows_and_columns() -> None:
    assert positions_3d(PICTURES, 0, 13).tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 6, 8, 9],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 6, 8, 9],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 8, 9],
    ]


def test_positions_of_a_part_are_those_of_the_whole() -> None:
    whole = positions_3d(PICTURES, 0, 15)
    for start in range(15):
        for count in range(15 - start):
            assert np.array_equal(positions_3d(PICTURES, start, count), whole[:, start : start + count])


def test_a_token_of_a_picture_sees_all_of_it() -> None:
    for start, count, wanted in (
        (0, 13, [1, 2, 8, 8, 8, 8, 8, 8, 9, 11, 11, 12, 13]),
        (4, 5, [8, 8, 8, 8, 9]),
        (0, 2, None),
        (8, 1, None),
        (11, 2, None),
    ):
        found = ends_seen(PICTURES, start, count)
        assert wanted == (None if found is None else found.tolist())


def test_rows_are_put_where_the_pass_has_them() -> None:
    whole: Float32Array = np.zeros((13, 1), np.float32)
    put_rows(whole, PICTURES, 0, lambda rows: rows)
    assert whole[:, 0].tolist() == [0, 0, 200, 201, 202, 203, 204, 205, 0, 900, 901, 0, 0]
    part: Float32Array = np.zeros((6, 1), np.float32)
    put_rows(part, PICTURES, 4, lambda rows: rows)
    assert part[:, 0].tolist() == [202, 203, 204, 205, 0, 900]


def test_rows_are_not_asked_for_where_the_pass_has_no_picture() -> None:
    def unwanted() -> Float32Array:
        raise AssertionError("the tower runs for nothing")

    put_rows(np.zeros((3, 1), np.float32), [SoftTokens(0, (1, 2), unwanted)], 2, lambda rows: rows)


def test_frequencies_turn_by_their_axes() -> None:
    rope = Rope(np.array([1, 0.5, 0.25], np.float32), axes=np.array([0, 1, 2]))
    cos, _ = rope.tables(2, 6, PICTURES)
    found = positions_3d(PICTURES, 2, 6)
    assert np.allclose(cos, np.cos(found.T * rope.frequencies))
    assert np.array_equal(rope.tables(2, 6)[0], Rope(rope.frequencies).tables(2, 6)[0])
