"""The exceptions of Ballast: one family, told apart by class or ``.code``."""

from typing import Dict, Optional, Type


class Error(Exception):
    """Any failure that the library or the daemon reports.

    Attributes:
      code: "INVALID_ARGUMENT", "UNAVAILABLE", … (gRPC's names).
      resume_step: the step to compute next if the session goes on after this
        error, else None.
    """

    code = "UNKNOWN"

    def __init__(self, message: str, resume_step: Optional[int] = None):
        super().__init__(message)
        self.resume_step = resume_step


class InvalidArgument(Error):
    """The call is wrong; the text names field, value and remedy."""
    code = "INVALID_ARGUMENT"


class FailedPrecondition(Error):
    """Not now, or not in this process; the text says what must come first."""
    code = "FAILED_PRECONDITION"


class ResourceExhausted(Error):
    """A bound of memory, size or number; the text names it."""
    code = "RESOURCE_EXHAUSTED"


class Unavailable(Error):
    """The daemon or a peer is not there."""
    code = "UNAVAILABLE"


class Aborted(Error):
    """A step was dropped: compute ``resume_step`` (again)."""
    code = "ABORTED"


class DataLoss(Error):
    """Something that was received or stored does not pass its check."""
    code = "DATA_LOSS"


class DeadlineExceeded(Error):
    """``timeout`` has passed; the text says for whom the daemon waits. The
    same call may be repeated and goes on waiting."""
    code = "DEADLINE_EXCEEDED"


class PermissionDenied(Error):
    """Wrong token, wrong user."""
    code = "PERMISSION_DENIED"


class AlreadyExists(Error):
    """Another worker holds this rank, or another job this name."""
    code = "ALREADY_EXISTS"


class NotFound(Error):
    """No such thing; the text names it."""
    code = "NOT_FOUND"


class Internal(Error):
    """A fault in Ballast itself: please report it."""
    code = "INTERNAL"


# Numbers are those of gRPC and of client/capi/ballast.h.
_CLASSES: Dict[int, Type[Error]] = {
    3: InvalidArgument, 4: DeadlineExceeded, 5: NotFound, 6: AlreadyExists,
    7: PermissionDenied, 8: ResourceExhausted, 9: FailedPrecondition,
    10: Aborted, 13: Internal, 14: Unavailable, 15: DataLoss,
    16: PermissionDenied,
}


def from_code(code: int, message: str,
              resume_step: Optional[int] = None) -> Error:
    """The exception for a code of the C interface."""
    return _CLASSES.get(code, Error)(message, resume_step)
