"""A decode step, recorded once as stretches of device work with host actions between them, then repeated."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable

from torch import Tensor

from moeinf.gpu.device import Device


class DecodeProgram:
    """Repeats one step of a model over fixed memory.

    The first call of `run` computes as written, so that kernels are compiled and scratch memory is there. The second
    records: what is submitted becomes a captured graph, and each `outside` ends the graph, runs its action and begins
    the next one. From then on `run` replays graphs and actions in turn, and no line of the model's Python is executed.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._owner: object = None
        self._mode: Hashable = None
        self._runs = 0
        self._recording = False
        self._steps: list[Callable[[], None]] = []
        self._result: Tensor | None = None

    def run(
        self, compute: Callable[[], Tensor], owner: object, before_last: Callable[[], None] = lambda: None
    ) -> Tensor:
        """What `compute` gives; it must read and write the same memory at every call for an equal `owner`.

        before_last: called in a repetition before its last stretch of work, in the place of what `compute` does there.
        """
        if owner != self._owner:
            self.reset()
            self._owner = owner
        self._runs += 1
        if self._runs == 1:
            return compute()
        if self._result is None:
            return self._record(compute)
        *steps, last = self._steps
        for step in steps:
            step()
        before_last()
        last()
        return self._result

    def keep_for(self, mode: Hashable) -> None:
        """A recording serves one mode of computing: forgets it where it was made in another than `mode`."""
        if mode != self._mode:
            self.reset()
            self._mode = mode

    def outside(self, action: Callable[[], None]) -> None:
        """Host work that belongs to the step: done now, and at this point of every repetition."""
        if not self._recording:
            action()
            return
        self._end_stretch()
        action()
        self._steps.append(action)
        self._device.begin_capture()

    def reset(self) -> None:
        """Forgets what was recorded: its memory may be given back, and the next run computes as written."""
        self._owner, self._runs, self._result = None, 0, None
        self._steps.clear()

    def _record(self, compute: Callable[[], Tensor]) -> Tensor:
        self._recording, collects = True, gc.isenabled()
        gc.disable()  # what is thrown away may call the driver, which a capture refuses
        try:
            self._device.begin_program()
            self._device.begin_capture()
            result = compute()
            self._end_stretch()
        except BaseException:
            self._device.drop_capture()
            self.reset()
            raise
        finally:
            self._recording = False
            if collects:
                gc.enable()
        self._result = result
        return result

    def _end_stretch(self) -> None:
        self._steps.append(self._device.end_capture().replay)
