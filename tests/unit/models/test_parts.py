"""Every part that a device computes in its own way can be made on each device."""

from __future__ import annotations

from moeinf.models.cpu.layers import PARTS as ON_THE_CPU
from moeinf.models.gpu.layers import PARTS as ON_A_GPU
from moeinf.models.layers.protocol import Part


def test_every_part_has_a_row_in_the_table_of_each_device() -> None:
    parts = {part.__qualname__ for part in Part.__subclasses__()}
    for table in (ON_THE_CPU, ON_A_GPU):
        assert {part.__qualname__ for part in table.rows} == parts
