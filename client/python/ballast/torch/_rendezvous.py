"""Where the job's nodes meet, asked of the workers' own store.

A process group has a store that all its ranks reach. Rank 0 leaves the
address of its node's peer plane there, so that other nodes need neither
BALLAST_COORDINATOR nor a MASTER_ADDR that is node 0's. Without a process
group nothing is asked and nothing changes.
"""

import datetime
import socket
from typing import Any, Callable, Mapping, Optional

import torch

from .. import _names, _options, errors

_NOBODY_KNOWS = "-"


def default_store() -> Optional[Any]:
    """The process group's store; None without a process group, or if this
    torch does not show it."""
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or \
            not distributed.is_initialized():
        return None
    find = getattr(distributed.distributed_c10d, "_get_default_store", None)
    return None if find is None else find()


def coordinator(given: Optional[str], topology: Mapping[str, int], job: str,
                env: Mapping[str, str], timeout: float,
                find_store: Callable[[], Optional[Any]] = default_store
                ) -> Optional[str]:
    """The `coordinator` argument of a Session: what was given, or what rank 0
    left in the store; None: the session looks at the environment itself.

    Collective where there is a store and more than one node: every rank must
    come, within `timeout` seconds.
    """
    num_nodes = topology["world_size"] // topology["local_world_size"]
    store = find_store() if num_nodes > 1 else None
    if store is None:
        return given
    key = "ballast/coordinator/" + job
    if topology["rank"] == 0:
        store.set(key, _of_node_0(given, env, num_nodes) or _NOBODY_KNOWS)
        return given
    if given or env.get("BALLAST_COORDINATOR") or topology["node_rank"] == 0:
        return given
    try:
        store.wait([key], datetime.timedelta(seconds=timeout))
    except RuntimeError as error:
        raise errors.DeadlineExceeded(
            "rank 0 has left no coordinator for job %s in the process group's "
            "store within %g s (%s): does it build the same optimizer? "
            "coordinator= or BALLAST_COORDINATOR on all nodes needs no store"
            % (job, timeout, error)) from error
    value = store.get(key).decode("utf-8", "replace")
    if value == _NOBODY_KNOWS:
        return None
    try:
        return _options.coordinator(value, {}, num_nodes)
    except errors.InvalidArgument as error:
        raise errors.InvalidArgument(
            "rank 0 left %s in the process group's store: %s"
            % (_names.shown(value), error)) from error


def _of_node_0(given: Optional[str], env: Mapping[str, str],
               num_nodes: int) -> str:
    """host:port of this node's peer plane, as others reach it."""
    known = _options.coordinator(given, env, num_nodes)
    if known:
        return known
    try:
        host = socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""
    return _options.coordinator(None, {"MASTER_ADDR": host}, num_nodes)
