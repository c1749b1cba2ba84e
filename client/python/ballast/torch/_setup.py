"""What the optimizer's constructor works out, and how a process ends."""

import os
import sys
import time
import weakref
from typing import Any, Callable, Dict, List

from .. import _names, errors, groups
from . import _hyper
from ._parameters import Entry

# Optimizers that are open.
live: "weakref.WeakSet[Any]" = weakref.WeakSet()


def exchange(policy: Any, strict: Any) -> Any:
    """The policy with `strict`; the daemon knows what it can honour."""
    if strict is True:
        return policy
    if isinstance(policy, str):
        return "%s strict=false" % policy
    return {**policy, "strict": strict}


def session_groups(entries: List[Entry], param_groups: List[Dict[str, Any]],
                   name: str) -> List[Dict[str, Any]]:
    """Group i as entry i of a Session's param_groups."""
    result = []
    for index, group in enumerate(param_groups):
        members = [e.name for e in entries if e.group == index]
        if not members:
            raise errors.InvalidArgument("param group %d is empty" % index)
        result.append({"match": members, **{
            key: _hyper.plain(group[key])
            for key in groups.OPTIMIZERS[name]}})
    return result


def check_buffers(buffers: Any) -> None:
    if buffers not in ("cursor", "local"):
        raise errors.InvalidArgument(
            "buffers must be \"cursor\" or \"local\", not %s"
            % _names.shown(buffers))


def check_unowned(entries: List[Entry]) -> None:
    mine = {id(e.parameter): e.name for e in entries}
    for other in live:
        for entry in other._entries:
            if id(entry.parameter) in mine:
                raise errors.FailedPrecondition(
                    "parameter %r belongs to the optimizer of job %s already: "
                    "one optimizer per model; close() that one first"
                    % (mine[id(entry.parameter)], other.session.job))


def until_closed(open_it: Callable[[], None], timeout: float) -> None:
    """Opens a job again that this rank has closed: refused until the last
    rank has, too."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return open_it()
        except errors.FailedPrecondition as error:
            if "has closed job" not in str(error) or \
                    time.monotonic() >= deadline:
                raise
        time.sleep(0.02)


def end_at_exit(reference: "weakref.ref[Any]") -> None:
    """A loop that came to its end closes the job; anything else leaves it
    held, and says so."""
    optimizer = reference()
    if optimizer is None or not optimizer._is_open or \
            optimizer._pid != os.getpid():
        return
    optimizer._is_open = False
    session = optimizer.session
    try:
        if optimizer._is_finished and not hasattr(sys, "last_value"):
            session.close()
            return
        session.detach()
        if session.rank == 0:
            print("ballast: job %s is held after step %d; a script of the "
                  "same job goes on there, optimizer.close() ends it"
                  % (session.job, session.open_step - 1), file=sys.stderr)
    except errors.Error:
        pass  # the daemon sees the process end
