"""Every error that Holdfast raises on purpose.

    HoldfastError                 the problem, and the fix
    ├── UsageError                the command line or a call was off
    │   ├── CommandNotFound       the command after `holdfast run` does not exist
    │   └── QueryError            SQL that cannot be answered
    │       ├── UnknownName       a table or column that does not exist
    │       └── QueryTimeout      SQL that ran past its time limit
    ├── TargetError               -t names nothing that can be used
    │   ├── NotARunFolder         the folder holds no run.json
    │   ├── NewerFormat           the folder was written by a newer Holdfast
    │   ├── NoSuchRun             no run of that name, process id or age
    │   ├── NoCheckpoint          no checkpoint at that path
    │   ├── ControlUnreachable    the process cannot be asked: gone, not answering, or refusing
    │   ├── CannotAttach          a process that Holdfast cannot get into
    │   ├── Unreachable           a server that does not answer
    │   └── NotAllowed            a server that does not let this token do it
    ├── LogUnreadable             a log of another tool that holds no run
    ├── StorageError              a table or file that cannot be written or read
    │   ├── DamagedSegment        a table segment whose header does not add up
    │   ├── DiskFull              no room, or none that this user may take
    │   └── BadCheckpoint         a checkpoint that must not be loaded: torn, unsafe, or with numbers that are not finite
    ├── DoesNotMatch              a checkpoint that does not fit the model
    ├── ControlFailed             a training that fails in a drill before any fault was put in
    ├── CannotSend                a tracker that does not take what it is sent
    ├── CannotRestore             a state that is not there, or does not fit the training any more
    │   └── OptimizersMissing     the state of more optimizers than the training has so far
    └── DoesNotFit                memory is too small for a single sample
    CannotHappen                  a fault of a drill that this training gives nothing to get hold of

None of them but DoesNotFit is raised into a training loop: there, Holdfast steps back and records `holdfast-degraded`.
DoesNotFit takes the place of the out-of-memory error that the loop would have met.
"""

from __future__ import annotations


class HoldfastError(Exception):
    """A problem in plain words, and what to do about it; the fix is required."""

    exit_code = 2

    def __init__(self, problem: str, *, fix: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.fix = fix


class UsageError(HoldfastError):
    """The command line or a call was off."""


class CommandNotFound(UsageError):
    """The command after `holdfast run` does not exist."""


class QueryError(UsageError):
    """SQL that cannot be answered."""


class UnknownName(QueryError):
    """A table or column that does not exist."""


class QueryTimeout(QueryError):
    """SQL that ran past its time limit."""


class TargetError(HoldfastError):
    """`-t` names nothing that can be used."""


class NotARunFolder(TargetError):
    """The folder holds no run.json."""


class NewerFormat(TargetError):
    """The folder was written by a newer Holdfast."""


class NoSuchRun(TargetError):
    """No run of that name, process id or age."""


class LogUnreadable(HoldfastError):
    """A log of another tool that cannot be read, or holds no run."""


class NoCheckpoint(TargetError):
    """No checkpoint at that path; the fix names those that were found nearby."""


class ControlUnreachable(TargetError):
    """The process of a rank cannot be asked: it is gone, does not answer, or refuses."""


class CannotAttach(TargetError):
    """A process that Holdfast cannot get into; it runs on as it was."""


class Unreachable(TargetError):
    """A server on this or another machine that does not answer, or breaks off."""


class NotAllowed(TargetError):
    """A server that does not know the token, or does not let it do what was asked."""


class StorageError(HoldfastError):
    """A table or file that cannot be written or read."""


class DamagedSegment(StorageError):
    """A table segment whose header does not add up."""


class DiskFull(StorageError):
    """No room on the disk, or none that this user may take."""


class BadCheckpoint(StorageError):
    """A checkpoint that must not be loaded: torn, unsafe, or with numbers that are not finite; nothing was changed."""

    def __str__(self) -> str:
        return f"{self.problem}\n  fix: {self.fix}"


class DoesNotMatch(HoldfastError):
    """A checkpoint that does not fit the model, or its optimizer; nothing was changed."""

    code = "checkpoint-incompatible"

    def __str__(self) -> str:
        return f"{self.problem}\n  fix: {self.fix}"


class ControlFailed(HoldfastError):
    """A training that fails, or does not train, before a drill has put any fault in."""


class CannotSend(HoldfastError):
    """A tracker or an address that does not take what it is sent; it is sent later."""


class CannotRestore(HoldfastError):
    """A state that is not there, or does not fit the training any more; nothing was changed."""


class OptimizersMissing(CannotRestore):
    """The state of more optimizers than the training has: some scripts create each with its first update."""


class DoesNotFit(HoldfastError):
    """Memory is too small for a single sample, or for a batch that cannot be cut."""


class CannotHappen(Exception):
    """Raised by a fault that finds nothing to get hold of: says what this training lacks."""


class NotHere(CannotHappen):
    """Raised by a fault that finds nothing to get hold of at this place, but may at a later one."""
