"""A model that is being opened for a job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from moeinf.server.turns.job import Job
from moeinf.server.turns.opened import Loaded


class ModelOpening:
    """Beside answers of other models a thread of its own opens it, so that they go on."""

    def __init__(self, job: Job, open_model: Callable[[], Loaded]) -> None:
        self.job, self._open, self._future = job, open_model, Future[Loaded]()
        self._began_s = time.perf_counter()
        self.load_s = 0.0  # that it took, once it is done

    def start(self, *, beside: bool) -> None:
        """beside: whether to return at once; else when the model is open, or cannot be."""
        if beside:
            threading.Thread(target=self._run, name="opening", daemon=True).start()
        else:
            self._run()

    @property
    def done(self) -> bool:
        return self._future.done()

    def result(self) -> Loaded:
        """The open model. Blocks until it is. Raises what opening it raised."""
        return self._future.result()

    def _run(self) -> None:
        try:
            loaded = self._open()
        except BaseException as error:  # whoever asks for the result is told, whatever it was
            self._future.set_exception(error)
        else:
            self.load_s = time.perf_counter() - self._began_s
            self._future.set_result(loaded)
