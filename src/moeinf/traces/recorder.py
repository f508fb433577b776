"""Records the routing of the requests that a model answers, each into a file of its own when it has ended."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from moeinf.config import RuntimeConfig
from moeinf.runtime.policy.policy_protocol import Listener
from moeinf.text.quantities import size_text
from moeinf.traces.folder import TraceFacts, add_request, open_folder, size_of_folder
from moeinf.traces.notes import Notes, notes_of_passes
from moeinf.traces.trace import ABSENT, Trace, dumps
from moeinf.types import Float32Array, IntArray, MoeShape, Phase

LIMIT_BYTES: Final = 1_000_000_000  # of a folder, where nothing else is asked for
_FIRST_TOKENS: Final = 256  # that there is room for; doubled where a request has more
_NOTES_AT_ONCE: Final = 4096  # put into arrays together: a call of numpy for each costs more


def open_recorder(
    config: RuntimeConfig, facts: TraceFacts, notify: Callable[[str], None], encoder_layers: int
) -> TraceRecorder | None:
    """What --trace asks for; None where nothing is recorded. Raises UsageError as TraceRecorder does."""
    if not config.recording.trace:
        return None
    folder, asked = Path(config.recording.trace), config.recording.trace_limit
    open_folder(folder, facts)
    limit = LIMIT_BYTES if asked is None else asked.of(shutil.disk_usage(folder).free)
    return TraceRecorder(folder, facts, limit, notify, encoder_layers)


class TraceRecorder(Listener):
    """Keeps the running request in memory, and writes it at its end.

    A pass counts only once it has been through its last layer, so that what was stopped or failed in the middle is
    left out. What cannot be written is told, and does not end the answer.
    """

    wants_weights = wants_guesses = True

    def __init__(
        self,
        folder: Path,
        facts: TraceFacts,
        limit_bytes: int = LIMIT_BYTES,
        notify: Callable[[str], None] = lambda line: None,
        encoder_layers: int = 0,
        notes_at_once: int = _NOTES_AT_ONCE,
    ) -> None:
        """limit_bytes: of the folder; before it is exceeded, recording ends, which is told.

        encoder_layers: how many of the layers, the first ones, an encoder's passes visit, and no others do.
        Raises UsageError for a folder that holds anything but a trace of this model.
        """
        open_folder(folder, facts)
        self._folder, self._shape, self._notify = folder, facts.shape, notify
        self._limit_bytes, self._bytes_left = limit_bytes, limit_bytes - size_of_folder(folder)
        if self._bytes_left <= 0:
            self._say_full()
        self._last_layers = (encoder_layers - 1, facts.shape.num_layers - 1)
        self._notes_at_once = notes_at_once
        self._start()

    def _start(self) -> None:
        """An empty request."""
        self._passes = [0]  # those that are whole: where each begins, and where the last one ends
        self._ran: list[range] = []  # the layers of those that are noted and not in arrays yet
        self._noted = 0  # notes of whole passes
        self._guesses_noted = 0
        self._next_layer = -1  # of the running pass; -1 where none runs
        self._num_prompt: int | None = None  # None: still prefill
        self._expected: dict[int, tuple[bytes, bytes]] = {}  # guesses by layer, until it has run
        self._routed, self._guessed, self._any_guess = Notes(), Notes(), False
        self._add_ids, self._add_weights = self._routed.ids.append, self._routed.weights.append
        self._arrays = _Arrays(self._shape, 0)

    def begin(self, phase: Phase) -> None:
        """A phase of a request begins."""
        self._drop_pass()
        self._expected.clear()
        if phase == "decode" and self._num_prompt is None:
            self._num_prompt = self._passes[-1]

    def routed(self, layer: int, ids: IntArray, weights: Float32Array) -> None:
        if layer != self._next_layer:
            self._begin_pass(layer)
        self._next_layer = layer + 1
        self._add_ids(ids.tobytes())
        self._add_weights(weights.tobytes())
        if self._expected and (guess := self._expected.pop(layer, None)):
            self._guessed.add(self._passes[-1], layer, *guess)
        if layer in self._last_layers:
            self._end_pass(layer, len(weights))

    def expect(self, layer: int, ids: IntArray, weights: Float32Array) -> None:
        self._expected[layer] = ids.tobytes(), weights.tobytes()

    def finish(self) -> None:
        """Writes the request, if any of its passes is whole; a second call does nothing."""
        self._drop_pass()
        request = self._request()
        self._start()
        if request is None or self._bytes_left <= 0:
            return
        data = dumps(request)
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            self._say_full()
            return
        try:
            add_request(self._folder, data)
        except OSError as error:
            self._notify(f"the routing of a request was not recorded: {self._folder}: {error.strerror or error}")

    def _say_full(self) -> None:
        self._notify(
            f"{self._folder} may hold {size_text(self._limit_bytes)} (--trace-limit): no more routing is recorded"
        )

    def _begin_pass(self, layer: int) -> None:
        if self._next_layer >= 0:  # the pass before was given up
            self._drop_pass()
            self._expected = {later: guess for later, guess in self._expected.items() if later == layer + 1}
        self._first_layer = layer

    def _end_pass(self, layer: int, num_tokens: int) -> None:
        self._ran.append(range(self._first_layer, layer + 1))
        self._passes.append(self._passes[-1] + num_tokens)
        self._next_layer = -1
        self._noted, self._guesses_noted = len(self._routed.ids), len(self._guessed.ids)
        if self._noted >= self._notes_at_once:
            self._put_together()

    def _drop_pass(self) -> None:
        """Forgets a pass that has not been through its last layer."""
        if self._next_layer >= 0:
            self._routed.drop(self._noted)
            self._guessed.drop(self._guesses_noted)
            self._next_layer = -1

    def _put_together(self) -> None:
        tokens = self._passes[-1]
        if tokens > self._arrays.room:
            self._arrays = self._arrays.grown(tokens)
        arrays = self._arrays
        starts = self._passes[len(self._passes) - 1 - len(self._ran) : -1]
        self._routed.firsts, self._routed.layers = notes_of_passes(starts, self._ran)
        self._any_guess = self._any_guess or self._guesses_noted > 0
        self._routed.put_into(arrays.experts, arrays.weights)
        self._guessed.put_into(arrays.guesses, arrays.guess_weights)
        self._ran, self._noted, self._guesses_noted = [], 0, 0

    def _request(self) -> Trace | None:
        """What was recorded of the running request; None for nothing."""
        tokens = self._passes[-1]
        if not tokens:
            return None
        self._put_together()
        arrays, guessed = self._arrays, self._any_guess
        return Trace(
            self._folder.name,
            self._shape,
            arrays.experts[:tokens],
            np.array([0, tokens]),
            np.array(self._passes),
            np.array([tokens if self._num_prompt is None else self._num_prompt]),
            arrays.weights[:tokens],
            arrays.guesses[:tokens] if guessed else None,
            arrays.guess_weights[:tokens] if guessed else None,
        )


class _Arrays:
    """What is recorded of a request, with room for some more tokens; of those that are not there yet, nothing."""

    def __init__(self, shape: MoeShape, room: int) -> None:
        size, small = (room, shape.num_layers, shape.top_k), np.int8 if shape.num_experts <= 128 else np.int16
        self._shape, self.room = shape, room
        self.experts: Any = np.full(size, ABSENT, small)
        self.guesses: Any = np.full(size, ABSENT, small)
        self.weights: Float32Array = np.zeros(size, np.float32)
        self.guess_weights: Float32Array = np.zeros(size, np.float32)

    def grown(self, tokens: int) -> _Arrays:
        """The same, with room for so many tokens at least."""
        larger = _Arrays(self._shape, max(_FIRST_TOKENS, 2 * self.room, tokens))
        for name in ("experts", "guesses", "weights", "guess_weights"):
            getattr(larger, name)[: self.room] = getattr(self, name)
        return larger
