"""The exceptions that moeinf raises on purpose; each message is one line that names the remedy.

MoeinfError                    anything a user can mend; the command line prints it and exits 1
|- UsageError                  a value or a combination of options that cannot be meant (exit 2)
|- ModelNotFoundError          no stored model of that name
|- CheckpointError             the source is not a checkpoint that can be converted
|  `- UnsupportedModelError    a sound checkpoint of an architecture moeinf does not know
|- HubError                    the Hugging Face Hub refused, is out of reach or sent wrong bytes
|- StoreError                  the store is damaged, read-only, locked or of a newer version
|  `- ExpertReadError          an expert could not be read from its shard
|- NotFiniteError              a result is no number: damaged weights, or a machine that computes wrongly
|- DiskSpaceError              not enough free disk for a pull
|- OutOfMemoryError            the model, or its dense part, does not fit the memory budget
|- DeviceError                 the GPU that was asked for cannot be used, or failed while it was
|- WorkerError                 another machine that was to compute experts does not answer, or refuses
|- ContextLengthError          the prompt is longer than the context
|- OutputError                 the answer cannot be written where it is sent
`- TextError                   a tokenizer or chat template that fails, hangs or is malformed
"""

import errno
from collections.abc import Mapping

# What can be done where the system gives no more files or threads.
LIMIT_REMEDIES: Mapping[int, str] = {
    errno.EMFILE: "raise the number of files that a process may open (ulimit -n)",
    errno.ENFILE: "the system has too many files open: end some other program",
    errno.EAGAIN: "lower --threads, or raise the number of processes that a user may have (ulimit -u)",
}

# What can be done about an error of the system that is no fault of a file's content.
REMEDIES: Mapping[int, str] = {
    **LIMIT_REMEDIES,
    errno.EIO: "the disk reports a fault: the system's log (dmesg) tells more",
}


class MoeinfError(Exception):
    """Root of the tree: one line for the user, with the remedy."""

    exit_code = 1


class UsageError(MoeinfError):
    exit_code = 2


class ModelNotFoundError(MoeinfError):
    pass


class CheckpointError(MoeinfError):
    pass


class UnsupportedModelError(CheckpointError):
    pass


class HubError(MoeinfError):
    pass


class StoreError(MoeinfError):
    pass


class ExpertReadError(StoreError):
    pass


class NotFiniteError(MoeinfError):
    pass


class DiskSpaceError(MoeinfError):
    pass


class OutOfMemoryError(MoeinfError):
    pass


class DeviceError(MoeinfError):
    pass


class WorkerError(MoeinfError):
    pass


class ContextLengthError(MoeinfError):
    pass


class OutputError(MoeinfError):
    pass


class TextError(MoeinfError):
    pass
