"""The exceptions that moeinf raises on purpose; each message is one line that names the remedy.

MoeinfError                    anything a user can mend; the command line prints it and exits 1
|- UsageError                  a value or a combination of options that cannot be meant (exit 2)
|- ModelNotFoundError          no stored model of that name
|- CheckpointError             the source is not a checkpoint that can be converted
|  `- UnsupportedModelError    a sound checkpoint of an architecture moeinf does not know
|- HubError                    the Hugging Face Hub refused, is out of reach or sent wrong bytes
|  |- UnreachableError         there is no way to it
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
import re
from collections.abc import Mapping

# What can be done where the system gives no more files or threads.
LIMIT_REMEDIES: Mapping[int, str] = {
    errno.EMFILE: "raise the number of files that a process may open (ulimit -n)",
    errno.ENFILE: "the system has too many files open: end some other program",
    errno.EAGAIN: "lower --threads, or raise the number of processes that a user may have (ulimit -u)",
}

# What Python raises where a value that was read is of another form or size than it should be: a number of JSON may be
# larger than a float holds, or infinite, which is no ValueError.
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)

# What Python 3.11 raises where the frame of a function is refused memory. Of a fault in native code it says more.
_LOST_MEMORY_ERROR = "error return without exception set"

UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)

_GONE = "its device has gone: connect it and mount its file system again"
_UNKNOWN_TO_IT = (
    "its file system, or a filter of system calls, does not allow that: choose a folder on another one with MOEINF_HOME"
)
_KEY = "the key of its file system is missing or has expired: log in again, or unlock the folder"
_SERVER = "the server or program behind its file system does not answer: mount it again, and repeat the command"

_OF_LINUX: Mapping[str, str] = {  # numbers that other systems do not have
    "EUCLEAN": "its file system is damaged: have it checked (fsck)",
    "EREMOTEIO": _SERVER,
    "ENOMEDIUM": _GONE,
    **dict.fromkeys(("ENOKEY", "EKEYEXPIRED", "EKEYREVOKED"), _KEY),
}

# What can be done about a call that the system refuses, of which no file is known.
REFUSED_CALL = (
    "the system refuses a call that moeinf makes: allow it to the container or sandbox, if there is one (--debug tells "
    "which)"
)

# What can be done about an error of the system that is no fault of a file's content. Nothing here may cost anybody a
# sound file.
REMEDIES: Mapping[int, str] = {
    **LIMIT_REMEDIES,
    errno.EIO: "the disk reports a fault: the system's log (dmesg) tells more",
    errno.EACCES: "change the permissions, or run it as a user who has them",
    errno.EPERM: "the system does not permit it to this user: change the permissions, or what filters its calls",
    errno.EROFS: "its file system is read-only: mount it so that it can be written, or choose another folder",
    errno.ENOSPC: "free some space, and repeat the command",
    errno.EDQUOT: "free some of your space or have your quota raised, and repeat the command",
    errno.EFBIG: "this user or file system may not have files of that size: raise the limit (ulimit -f)",
    errno.ENOMEM: "free some memory, or raise the limit of the process (ulimit -v)",
    errno.ENOBUFS: "the system has no memory for it: free some",
    errno.ENOENT: "check the path; where it is right, the file has gone meanwhile: repeat the command",
    errno.ESTALE: "its server has another file there by now: repeat the command, or mount the file system again",
    errno.ENOTDIR: "a part of the path is a file where a folder is wanted: check the path",
    errno.EISDIR: "it is a folder where a file is wanted: check the path",
    errno.ELOOP: "its symbolic links lead in a circle: mend the link",
    errno.ENAMETOOLONG: "choose a shorter name, or a folder with a shorter path",
    errno.EILSEQ: "its file system does not know a character of that name: choose another name or folder",
    errno.EEXIST: "another program has made it meanwhile: repeat the command",
    errno.ENOTEMPTY: "another program writes there: repeat the command when it has ended",
    errno.EBUSY: "another program or the system uses it: repeat the command when it has ended",
    errno.ETXTBSY: "a program runs from it, or it is swap: repeat the command when that has ended",
    errno.EDEADLK: "other programs wait for the same file: repeat the command",
    errno.EINTR: "a signal came in between: repeat the command",
    errno.EXDEV: "its folders lie on two file systems: choose a folder on one of them with MOEINF_HOME",
    errno.EMLINK: "it has as many links as its file system allows: choose another folder",
    errno.EOVERFLOW: "its file is larger than this system or file system can tell: choose another folder",
    errno.ETIMEDOUT: _SERVER,
    errno.ENOTCONN: _SERVER,
    errno.EHOSTDOWN: _SERVER,
    **dict.fromkeys((errno.ENODEV, errno.ENXIO), _GONE),
    **dict.fromkeys(UNSUPPORTED, _UNKNOWN_TO_IT),
    **{getattr(errno, name): remedy for name, remedy in _OF_LINUX.items() if hasattr(errno, name)},
}


def in_a_line(error: BaseException) -> str:
    """What a library says of a fault, which may be lines of what it has read."""
    return " ".join(str(error).split())[:200]


def is_of_content(error: OSError) -> bool:
    """Whether a file is not what was written: it is gone, cut, or something else by now.

    Else the system has refused to read it, which says nothing about the file. EBADMSG is what moeinf itself raises.
    """
    return (error.errno or 0) in (0, errno.EBADMSG, errno.ENOENT, errno.ENOTDIR)


def remedy_of(error: OSError, damaged: str) -> str:
    """What can be done about a file that cannot be read. damaged: where it is not what was written."""
    return damaged if is_of_content(error) else REMEDIES.get(error.errno or 0, "the system's log (dmesg) may tell why")


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


class UnreachableError(HubError):
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
    """num_tokens: that the prompt has, at least; 0: not known. context: tokens that there is room for.

    remedy: the last part of the message, what can be done.
    """

    def __init__(self, message: str, num_tokens: int = 0, context: int = 0, remedy: str = "") -> None:
        super().__init__(message)
        self.num_tokens, self.context, self.remedy = num_tokens, context, remedy


class OutputError(MoeinfError):
    pass


class TextError(MoeinfError):
    pass


class StarvedError(MoeinfError):
    """A process got no processor time, was stopped or killed: the same request may be answered later."""


def of_the_machine(error: BaseException) -> MoeinfError | None:
    """The line for what Python itself raises where the machine gives too little; None for any other error."""
    too_little = isinstance(error, ImportError) and re.search(r"map segment|allocate memory", str(error))
    lost = isinstance(error, SystemError) and str(error) == _LOST_MEMORY_ERROR
    if isinstance(error, MemoryError) or too_little or lost:
        return OutOfMemoryError(f"not enough memory; {REMEDIES[errno.ENOMEM]}")
    if isinstance(error, ImportError):
        return MoeinfError(
            f"a part of moeinf cannot be loaded ({error}): the system does not let it be read, or moeinf is not whole; "
            "install it again"
        )
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return MoeinfError(f"the system starts no more threads; {REMEDIES[errno.EAGAIN]}")
    return None
