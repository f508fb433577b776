"""The native read engine: memory for experts, and reads into it in the background."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from moeinf.types import FloatArray, IntArray, ReadDone

class ReadFailure(OSError):
    """A read that failed or came back short; errno is 0 where the file has the wrong size. key is -1 at opening."""

    key: int
    path: str
    offset: int
    num_bytes_read: int

class Arena:
    """Anonymous memory on a 2 MiB border, taken from the machine page by page as it is written.

    ValueError for 0 bytes, MemoryError where the machine refuses.
    """

    def __init__(self, num_bytes: int) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    def array(self) -> npt.NDArray[np.uint8]:
        """All of it as a writable array that keeps the arena alive."""

class NativeReader:
    """moeinf.types.Reader over io_uring or a pool of threads.

    Opens every file at once: OSError (as open raises it) for one that cannot be opened, ReadFailure for one whose size
    is not the given one. O_DIRECT or io_uring refused: goes on without, and `notice` says so; a backend that was asked
    for by name and is refused is an OSError. After close(), every call but bytes_read, busy_seconds and close is a
    ValueError, and a wait_any under way in another thread ends with it.
    """

    def __init__(
        self,
        paths: Sequence[str],
        sizes: Sequence[int],
        arena: Arena,
        *,
        backend: Literal["auto", "io_uring", "threads"] = "auto",
        direct: bool = True,
        queue_depth: int = 16,
        prefetch_depth: int = 4,
        segment_bytes: int = ...,
    ) -> None: ...
    @property
    def backend(self) -> str: ...
    @property
    def notice(self) -> str: ...
    def submit(
        self,
        keys: IntArray,
        files: IntArray,
        offsets: IntArray,
        destinations: IntArray,
        num_bytes: int,
        priorities: FloatArray,
    ) -> None:
        """Queues a read per key; `destinations` are offsets in the arena. Nothing is queued when it raises.

        ValueError for a key that is queued, in flight or not collected; for a range that is not inside its file and
        the arena, or not on 4 KiB borders; for a priority that is NaN or -inf.
        """

    def reprioritise(self, keys: IntArray, priorities: FloatArray) -> None:
        """Moves queued and half-issued requests; segments in flight go on. Unknown and landed keys are ignored."""

    def cancel(self, keys: IntArray) -> IntArray:
        """Drops the requests of which nothing was issued yet, and returns their keys."""

    def wait_any(self, keys: IntArray) -> IntArray:
        """Blocks without the GIL until at least one key has landed; collects and returns all that have, in that order.

        Raises ReadFailure for the first that failed: that key alone is forgotten and may be submitted again, the others
        stay to be collected. ValueError for a key that is not known. Signal handlers run every 100 ms.
        """

    def poll(self) -> ReadDone:
        """Collects everything that has ended, in the order in which it ended. Does not block."""

    def bytes_read(self) -> int: ...
    def busy_seconds(self) -> float:
        """Seconds in which at least one read was in flight."""

    def close(self) -> None:
        """Drops what is queued and waits for what is in flight, since the kernel writes into the arena until then."""
