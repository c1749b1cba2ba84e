"""Ballast: optimizer state that outlives the training process.

    import ballast
    with ballast.Session(job="gpt2", tensors=weights,
                         optimizer={"name": "adamw", "lr": 3e-4}) as s:
        for step in s.steps(1000):
            ...  # read s.params, write s.grads
            result = s.step()

A Session needs numpy and libballast.so; `ballast.launch` and `ballast.run`
need neither.
"""

from typing import Any

from .errors import (Aborted, AlreadyExists, DataLoss, DeadlineExceeded, Error,
                     FailedPrecondition, Internal, InvalidArgument, NotFound,
                     PermissionDenied, ResourceExhausted, Unavailable)

__version__ = "0.1.0"

__all__ = [
    "Aborted", "AlreadyExists", "DataLoss", "DeadlineExceeded", "Error",
    "FailedPrecondition", "Internal", "InvalidArgument", "NotFound",
    "PathQuality", "PermissionDenied", "ResourceExhausted", "Session",
    "StepResult", "Unavailable",
]


def __getattr__(name: str) -> Any:  # numpy is imported when it is needed
    if name == "Session":
        from .session import Session
        return Session
    if name in ("PathQuality", "StepResult"):
        from . import result
        return getattr(result, name)
    raise AttributeError("module 'ballast' has no attribute %r" % name)
