"""How experts are cut: every byte lies in one slice, and a slot holds any slice wherever it begins in its file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moeinf.store.library import StoredModel
from moeinf.store.placed.expert_slices import ExpertSlices, slices_of
from moeinf.store.placed.places import InPlace, PartPlace
from moeinf.types import BLOCK_ALIGN_BYTES, ExpertLayout, TensorSpec, format_bytes


@pytest.fixture
def cut(demo: StoredModel, monkeypatch: pytest.MonkeyPatch) -> ExpertSlices:
    monkeypatch.setattr("moeinf.store.placed.expert_slices.ROWS_STEP", 8)
    slices = slices_of(demo.manifest, 1, 10_000)
    assert slices is not None
    return slices


def test_small_experts_stay_whole(demo: StoredModel) -> None:
    assert slices_of(demo.manifest) is None


def test_the_slices_of_a_block_make_up_all_of_it(demo: StoredModel, cut: ExpertSlices) -> None:
    stride = demo.manifest.layout.stride_bytes
    assert len(cut.layers) == demo.manifest.moe.num_layers and cut.most > 3
    for number, layer in enumerate(cut.layers):
        ranges = sorted((piece.start, piece.num_bytes) for each in layer for piece in each)
        end = 0
        for start, num_bytes in ranges:
            assert start == end
            end += num_bytes
        assert end == stride
        assert all((piece.file, piece.step) == (number, stride) for each in layer for piece in each)


def test_rows_of_gate_and_up_come_first_and_together(demo: StoredModel, cut: ExpertSlices) -> None:
    for layer in cut.layers:
        names = [[piece.part.name for piece in each] for each in layer]
        acts = names.count(["gate", "up"])
        assert names == [["gate", "up"]] * acts + [["down"]] * (len(names) - acts) and 0 < acts < len(names)
        for part in demo.manifest.layout.tensors:
            rows = [piece.num_rows for each in layer for piece in each if piece.part == part]
            assert sum(rows) == part.shape[0] and all(count % 8 == 0 for count in rows[:-1])


def test_a_slot_holds_a_slice_wherever_it_begins(demo: StoredModel) -> None:
    parts = [TensorSpec("gate", "q4_0", (320, 96), 0, format_bytes("q4_0", (320, 96)))]
    parts += [replace(parts[0], name="up"), TensorSpec("down", "q5_1", (96, 320), 0, format_bytes("q5_1", (96, 320)))]
    places = [PartPlace(each.name, each.name, 0, 1001 + 77 * i, each.num_bytes) for i, each in enumerate(parts)]
    layout = ExpertLayout(tuple(parts), 1 << 20, 1 << 20)
    moe = replace(demo.manifest.moe, num_layers=1)
    manifest = replace(
        demo.manifest, moe=moe, layers=(layout,), in_place=InPlace("", (), (), (tuple(places),)), layout=layout
    )
    cut = slices_of(manifest, 1, 9000)
    assert cut is not None and cut.most > 3
    for each in cut.layers[0]:
        end = 0
        for piece in each:
            assert piece.region >= end and piece.region % BLOCK_ALIGN_BYTES == 0
            for expert in range(moe.num_experts):
                first = (piece.start + expert * piece.step) % BLOCK_ALIGN_BYTES
                end = max(end, piece.region + -(-(first + piece.num_bytes) // BLOCK_ALIGN_BYTES) * BLOCK_ALIGN_BYTES)
        assert end <= cut.slot_bytes
