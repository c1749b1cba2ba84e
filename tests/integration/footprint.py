"""What a process holds, counted from outside: of a job that has ended nothing
may be left (I28)."""

import os
from typing import NamedTuple, Set


class Footprint(NamedTuple):
    """Of one process: descriptors, those of them that are shared memory or
    sockets, and threads."""
    fds: int
    memfds: int
    sockets: int
    threads: int

    def fits(self, other: "Footprint") -> bool:
        """Nothing of it is more than of the other one. gRPC starts threads by
        how busy it was: a few are no leak."""
        return all(mine <= its for mine, its in zip(
            self, other._replace(threads=other.threads + 4)))


def of(pid: int) -> Footprint:
    """Zeros for a process that is not there."""
    targets = []
    folder = "/proc/%d/fd" % pid
    try:
        names = os.listdir(folder)
        threads = len(os.listdir("/proc/%d/task" % pid))
    except OSError:
        return Footprint(0, 0, 0, 0)
    for name in names:
        try:
            targets.append(os.readlink(os.path.join(folder, name)))
        except OSError:  # closed meanwhile
            pass
    return Footprint(
        len(targets), sum(t.startswith("/memfd:") for t in targets),
        sum(t.startswith("socket:") for t in targets), threads)


def files(directory: str) -> Set[str]:
    """Everything below a directory, by relative path."""
    return {os.path.relpath(os.path.join(path, name), directory)
            for path, folders, names in os.walk(directory)
            for name in folders + names}


def shared_memory() -> Set[str]:
    """What lies under /dev/shm, where nothing of ours ever is."""
    return set(os.listdir("/dev/shm"))
