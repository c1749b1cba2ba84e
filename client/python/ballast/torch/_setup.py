"""What the optimizer's constructor works out, and how a process ends."""

import os
import sys
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from .. import _names, _options, errors, groups
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


def place(job: Optional[str], rank: Optional[int], world_size: Optional[int],
          local_rank: Optional[int], local_world_size: Optional[int],
          node_rank: Optional[int]) -> Tuple[Dict[str, int], str]:
    """Who this rank is, and of which job."""
    env = _options.environment()
    return _options.topology(
        env, rank=rank, world_size=world_size, local_rank=local_rank,
        local_world_size=local_world_size,
        node_rank=node_rank), _options.job_name(job, env)


def check_buffers(buffers: Any) -> None:
    if buffers not in ("rank0", "cursor", "local"):
        raise errors.InvalidArgument(
            "buffers must be \"rank0\", \"cursor\" or \"local\", not %s"
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
    rank has, too. It is opened with resume="never": what is stored of it is
    not what the caller wants."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return open_it()
        except errors.FailedPrecondition as error:
            is_closing = "has closed job" in str(error) or \
                'resume="never" does not go on' in str(error)
            if not is_closing or time.monotonic() >= deadline:
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
